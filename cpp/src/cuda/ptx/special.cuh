// Special registers.
#pragma once

namespace dlattn::cuda::ptx {

// The thread's place in its warp, read again at each call. PTX ISA, "Special Registers: %laneid"; any SM.
__device__ __forceinline__ int lane_id() {
  int lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}

}  // namespace dlattn::cuda::ptx
