// Items of attention_prefill_wgmma handed out as thread blocks become free.
#pragma once

#include <cstdint>
#include <cuda/atomic>

namespace dlattn::cuda {
namespace prefill_wgmma {

// Lies in the workspace, which holds anything at first: block 0 sets it up, and the last one that asks undoes that, so
// that a graph may play the launch again. A memset in its stead would be a node of its own, between whose neighbours
// nothing overlaps (3 us).
struct ItemCounter {
  uint64_t key;    // of the launch that it is set up for, else 0
  unsigned taken;  // asked for so far

  // Block 0, once.
  __device__ __forceinline__ void set_up(uint64_t launch) {
    ::cuda::atomic_ref<unsigned, ::cuda::thread_scope_device>(taken).store(0, ::cuda::memory_order_relaxed);
    ::cuda::atomic_ref<uint64_t, ::cuda::thread_scope_device>(key).store(launch, ::cuda::memory_order_release);
  }

  // The next of num_items, behind the first num_blocks, which they have taken already. A block asks until there are no more.
  __device__ __forceinline__ int take(uint64_t launch, int num_items, int num_blocks) {
    const ::cuda::atomic_ref<uint64_t, ::cuda::thread_scope_device> ready(key);
    while (ready.load(::cuda::memory_order_acquire) != launch) continue;
    const unsigned before =
        ::cuda::atomic_ref<unsigned, ::cuda::thread_scope_device>(taken).fetch_add(1, ::cuda::memory_order_acq_rel);
    // num_items - num_blocks that were there, and of each block one more.
    if (before == static_cast<unsigned>(num_items) - 1) ready.store(0, ::cuda::memory_order_release);
    return num_blocks + static_cast<int>(before);
  }
};

}  // namespace prefill_wgmma
}  // namespace dlattn::cuda
