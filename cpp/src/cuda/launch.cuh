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

// Whether the code of the kernel that the (current) device runs has the instructions of chained launches
// (ptx/grid_dependency.cuh): if it was compiled for sm_90 or later, not if the driver translated older PTX.
template <auto* kKernel>
bool is_chainable(int device) {
  static std::atomic<uint64_t> asked{0}, chainable{0};
  const uint64_t bit = UINT64_C(1) << (device & 63);
  if ((asked.load(std::memory_order_acquire) & bit) == 0) {
    cudaFuncAttributes attributes = {};
    check(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kKernel)), "cudaFuncGetAttributes");
    if (attributes.ptxVersion >= 90 && attributes.binaryVersion >= 90) {
      chainable.fetch_or(bit, std::memory_order_relaxed);
    }
    asked.fetch_or(bit, std::memory_order_release);
  }
  return (chainable.load(std::memory_order_relaxed) & bit) != 0;
}

// Like launch(), but the kernel may begin while the one before it in the stream still runs, if that is chainable and lets
// it (ptx::launch_dependents). This one is chainable, and every thread block of it waits (ptx::grid_dependency_wait)
// before it touches memory.
template <typename... Args>
void launch_chained(void (*kernel)(Args...), const char* what, unsigned blocks, int threads, int shared_bytes,
                    cudaStream_t stream, const Args&... args) {
  const void* pointers[] = {&args...};
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  check(cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(kernel), const_cast<void**>(pointers)), what);
}

}  // namespace dlattn::cuda
