// CUDA errors as exceptions; none stays behind in the runtime.
#pragma once

#include <cuda_runtime_api.h>

namespace dlattn::cuda {

[[noreturn]] void fail(cudaError_t error, const char* what);  // clears the runtime's last error, throws CudaError

// `what`: the call, as the message shows it: "cudaSetDevice".
inline void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) fail(error, what);
}

}  // namespace dlattn::cuda
