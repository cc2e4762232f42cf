// CUDA errors as exceptions; none stays behind in the runtime.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "dlattn/error.h"

namespace dlattn::cuda {

// Clears the runtime's last error, throws CudaError.
[[noreturn]] inline void fail(cudaError_t error, const char* what) {
  cudaGetLastError();
  throw CudaError(std::string(what) + " failed: " + cudaGetErrorName(error) + ": " + cudaGetErrorString(error));
}

// `what`: the call, as the message shows it: "cudaSetDevice".
inline void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) fail(error, what);
}

}  // namespace dlattn::cuda
