// Barriers in shared memory that also count the bytes of asynchronous copies. A barrier is a uint64_t; its phase ends, and the
// next one begins, when as many threads have arrived as it was made for and all bytes announced are there. The phases'
// parities are 0, 1, 0, 1, ...
#pragma once

#include <cstdint>

namespace dlattn::cuda::ptx {

// One thread, before all others know of the barrier.
// PTX ISA, "Parallel synchronization and communication instructions: mbarrier.init"; sm_80.
__device__ __forceinline__ void mbarrier_init(uint32_t barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

// After the last mbarrier_init() of the thread and before a __syncthreads(): asynchronous copies see the barriers, too.
// PTX ISA, "membar / fence: fence.mbarrier_init"; sm_90.
__device__ __forceinline__ void mbarrier_fence_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// What the thread has read and written comes before the end of the phase. PTX ISA, "mbarrier.arrive"; sm_80.
__device__ __forceinline__ void mbarrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// The same, and announces bytes: exactly those that the copies of this phase bring. PTX ISA, "mbarrier.arrive"; sm_90.
__device__ __forceinline__ void mbarrier_arrive_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// Until the phase of that parity has ended: of the current one and the one before. So parity 1 passes a new barrier at once.
// The two jumps become one loop where it stands; `@!ended bra again` becomes a copy of the loop at the kernel's end.
// PTX ISA, "mbarrier.test_wait, mbarrier.try_wait"; sm_90.
__device__ __forceinline__ void mbarrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred ended;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 ended, [%0], %1;\n"
      "@ended bra done;\n"
      "bra again;\n"
      "done:\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

}  // namespace dlattn::cuda::ptx
