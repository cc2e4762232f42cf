// The driver's functions, asked of the runtime: libcuda is not linked.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "cuda/check.h"

namespace dlattn::cuda {

// F: decltype(&name). Throws CudaError without a driver or if it does not have the function.
template <typename F>
F driver_function(const char* name) {
  void* function = nullptr;
#if CUDART_VERSION >= 12050
  check(cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault), name);
#else
  check(cudaGetDriverEntryPoint(name, &function, cudaEnableDefault), name);
#endif
  if (function == nullptr) throw CudaError(std::string("this machine's CUDA driver has no ") + name + ", 12.0 has it");
  return reinterpret_cast<F>(function);
}

}  // namespace dlattn::cuda
