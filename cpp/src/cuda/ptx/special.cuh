// Special registers.
#pragma once

namespace dlattn::cuda::ptx {

// The thread's place in its warp, read again at each call. PTX ISA, "Special Registers: %laneid"; any SM.
__device__ __forceinline__ int lane_id() {
  int lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}

// The thread's place in its block, along x, likewise. PTX ISA, "Special Registers: %tid"; any SM.
__device__ __forceinline__ int thread_id() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

}  // namespace dlattn::cuda::ptx
