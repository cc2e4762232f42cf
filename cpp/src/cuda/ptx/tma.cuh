// Copies of boxes between a tensor in global memory and shared memory, by the tensor memory accelerator: one thread asks for
// one. A tensor map says what the tensor, the box and its layout in shared memory are; coordinates are those of the box's first
// element, innermost first, and may lie outside the tensor.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace dlattn::cuda::ptx {

// Brings the map, a kernel's __grid_constant__ parameter, near. PTX ISA, "prefetch: prefetch.tensormap"; sm_90.
__device__ __forceinline__ void tma_prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Elements outside the tensor become 0; `barrier` (mbarrier.cuh) gets all bytes of the box, those as well.
// PTX ISA, "Data movement and conversion instructions: cp.async.bulk.tensor"; sm_90.
__device__ __forceinline__ void tma_load_4d(uint32_t smem, const CUtensorMap* map, uint32_t barrier, int c0, int c1,
                                            int c2, int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
      "[%2];" ::"r"(smem),
      "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}

// Elements behind the tensor's ends are not written; coordinates are not negative (an illegal instruction). Joins the group
// that bulk_commit() closes. PTX ISA, as above; sm_90.
__device__ __forceinline__ void tma_store_4d(const CUtensorMap* map, uint32_t smem, int c0, int c1, int c2, int c3) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(map),
               "r"(smem), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
               : "memory");
}

// What this thread wrote to shared memory comes before the accesses of copies and of wgmma that follow a barrier after this.
// PTX ISA, "membar / fence: fence.proxy.async"; sm_90.
__device__ __forceinline__ void fence_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Closes the group of this thread's stores since the last one. PTX ISA, "cp.async.bulk.commit_group"; sm_90.
__device__ __forceinline__ void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// All but the last `kGroups` groups of this thread are written. PTX ISA, "cp.async.bulk.wait_group"; sm_90.
template <int kGroups>
__device__ __forceinline__ void bulk_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kGroups) : "memory");
}

// The same of what they read: their shared memory may change. PTX ISA, as above; sm_90.
template <int kGroups>
__device__ __forceinline__ void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kGroups) : "memory");
}

}  // namespace dlattn::cuda::ptx
