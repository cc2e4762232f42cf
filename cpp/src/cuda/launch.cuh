// Launching a kernel.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "cuda/check.h"

namespace dlattn::cuda {

// A one-dimensional grid: a kernel walks over what does not fit it.
inline unsigned grid_of(int64_t blocks) { return static_cast<unsigned>(std::min<int64_t>(blocks, INT32_MAX)); }

// Lets the kernel have that much dynamic shared memory on the device; asked for once.
template <auto* kKernel>
void allow_shared(int device, int bytes) {
  static std::atomic<uint64_t> done{0};
  const uint64_t bit = UINT64_C(1) << (device & 63);
  if ((done.load(std::memory_order_relaxed) & bit) != 0) return;
  check(cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "cudaFuncSetAttribute");
  done.fetch_or(bit, std::memory_order_relaxed);
}

// Throws CudaError of this launch, not of some call before it.
template <typename... Args>
void launch(void (*kernel)(Args...), const char* what, unsigned blocks, int threads, int shared_bytes,
            cudaStream_t stream, const Args&... args) {
  const void* pointers[] = {&args...};
  check(cudaLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(blocks), dim3(static_cast<unsigned>(threads)),
                         const_cast<void**>(pointers), static_cast<size_t>(shared_bytes), stream),
        what);
}

}  // namespace dlattn::cuda
