// Chained launches (programmatic stream serialization): a kernel may begin while the one before it in the stream still runs. Code
// for GPUs older than sm_90, which have no such launches, has no such instructions: is_chainable() of launch.cuh asks.
#pragma once

namespace dlattn::cuda::ptx {

// The kernel before has ended, what it wrote is there. Every block calls it, so that a grid's end means the end of those
// before it, too. PTX ISA, "griddepcontrol"; sm_90.
__device__ __forceinline__ void grid_dependency_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The next kernel may begin as soon as every block has called this or ended. PTX ISA, "griddepcontrol"; sm_90.
__device__ __forceinline__ void launch_dependents() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace dlattn::cuda::ptx
