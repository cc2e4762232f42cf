// Copies from global to shared memory that a thread does not wait for.
#pragma once

#include <cstdint>

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#error "cp.async needs sm_80"
#endif

namespace dlattn::cuda::ptx {

// 16 bytes, past the L1; zeros, and nothing is read, unless `valid`. Both addresses on a multiple of 16.
// PTX ISA, "Data movement and conversion instructions: cp.async"; sm_80.
__device__ __forceinline__ void cp_async_16(uint32_t smem, const void* global, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(smem), "l"(global), "r"(valid ? 16 : 0)
               : "memory");
}

// 4 or 8 bytes, both addresses on a multiple of that.
__device__ __forceinline__ void cp_async_4(uint32_t smem, const void* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(smem), "l"(global) : "memory");
}
__device__ __forceinline__ void cp_async_8(uint32_t smem, const void* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(smem), "l"(global) : "memory");
}

// 16 bytes or nothing at all, without a branch.
__device__ __forceinline__ void cp_async_16_if(bool wanted, uint32_t smem, const void* global) {
  asm volatile(
      "{\n"
      ".reg .pred wanted;\n"
      "setp.ne.b32 wanted, %2, 0;\n"
      "@wanted cp.async.cg.shared.global [%0], [%1], 16;\n"
      "}" ::"r"(smem),
      "l"(global), "r"(static_cast<int>(wanted))
      : "memory");
}

// Closes the group of this thread's copies since the last one. PTX ISA, "cp.async.commit_group"; sm_80.
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// All but the last `kGroups` groups of this thread are there, for itself. PTX ISA, "cp.async.wait_group"; sm_80.
template <int kGroups>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

}  // namespace dlattn::cuda::ptx
