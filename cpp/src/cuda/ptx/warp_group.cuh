// What warp groups (4 warps, the first one's index on a multiple of 4) of one block share: registers and barriers.
#pragma once

namespace dlattn::cuda::ptx {

// The registers of each thread from here on, a multiple of 8 from 24 to 256: fewer, which frees some of those that the block got
// at its start, or more, which waits until there are that many. All warps of a group call it. For a kernel with __launch_bounds__.
// PTX ISA, "Miscellaneous instructions: setmaxnreg"; sm_90a.
template <int kCount>
__device__ __forceinline__ void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount) : "memory");
}
template <int kCount>
__device__ __forceinline__ void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount) : "memory");
}

// __syncthreads() of the `kThreads` threads, whole warps, that call it with the same id, 1 to 15 (0 is __syncthreads() itself).
// PTX ISA, "Parallel synchronization and communication instructions: bar, barrier"; any SM.
template <int kThreads>
__device__ __forceinline__ void named_barrier_sync(int id) {
  asm volatile("barrier.cta.sync.aligned %0, %1;" ::"r"(id), "n"(kThreads) : "memory");
}

// A part of such a barrier that does not wait; `kThreads` counts these, too. What was written before is there for those that sync.
// PTX ISA, "Parallel synchronization and communication instructions: bar, barrier"; any SM.
template <int kThreads>
__device__ __forceinline__ void named_barrier_arrive(int id) {
  asm volatile("barrier.cta.arrive.aligned %0, %1;" ::"r"(id), "n"(kThreads) : "memory");
}

}  // namespace dlattn::cuda::ptx
