// Shared memory of attention_prefill_wgmma, and the barriers by which its roles hand it on to each other.
//   *_full    a copy has arrived: 1 thread announces it; waited for by the consumers
//   *_empty   it is no longer read: 1 thread of each consumer warp arrives; waited for by the loader
//   item_*    the same of what the scheduler writes; of item_empty all threads of the consumers and of the loader
//             are a part (racecheck does not follow one that arrives for its warp)
#pragma once

#include <cstdint>

#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/wgmma/work_item.cuh"

namespace dlattn::cuda {
namespace prefill_wgmma {

// The named barriers (ptx/warp_group.cuh).
enum NamedBarrier : int { kFirstTurn = 1 };  // of consumer warp group 0; then those of the groups behind it

// Results on their way, where a tile has room for them.
template <typename T, int kPanels, int kRows>
struct Results {
  alignas(1024) T out[kPanels][kRows][64];
};
template <typename T, int kRows>
struct Results<T, 0, kRows> {};

// Panels of 64 columns: rows of 128 bytes, swizzled (ptx/wgmma.cuh).
template <typename T, class Config>
struct SharedStorage : Results<T, Config::kOutPanels, Config::kTileQ> {
  static constexpr int kPanels = Config::kPanels, kStages = Config::kStages, kItems = 4;

  alignas(1024) T q[kPanels][Config::kTileQ][64];
  alignas(1024) T k[kStages][kPanels][Config::kTileKV][64];
  alignas(1024) T v[kStages][kPanels][Config::kTileKV][64];
  alignas(8) uint64_t q_full, q_empty;
  uint64_t k_full[kStages], k_empty[kStages], v_full[kStages], v_empty[kStages];
  uint64_t v_raw;  // the copy of a tile of v of which some rows are to be cleared
  uint64_t item_full[kItems], item_empty[kItems];
  uint64_t item_late;  // the loader is near the end of an item: 1 thread; waited for by the scheduler
  WorkItem items[kItems];
  int failed[kItems];
  float scale_log2;  // as in the work list; read from here it lies in a register, and is no slower constant operand

  __device__ __forceinline__ void init(const WorkList& list) {
    constexpr int kConsumerWarps = 4 * Config::kGroups;
    const auto make = [](uint64_t& barrier, int count) { ptx::mbarrier_init(ptx::smem_address(&barrier), count); };
    make(q_full, 1), make(q_empty, kConsumerWarps), make(v_raw, 1), make(item_late, 1);
    for (int i = 0; i < kStages; ++i) {
      make(k_full[i], 1), make(k_empty[i], kConsumerWarps);
      make(v_full[i], 1), make(v_empty[i], kConsumerWarps);
    }
    for (int i = 0; i < kItems; ++i) {
      make(item_full[i], 1), make(item_empty[i], 32 * (kConsumerWarps + 1));
      failed[i] = 0;
    }
    scale_log2 = list.scale_log2;
    ptx::mbarrier_fence_init();
  }
};

__device__ __forceinline__ void wait(const uint64_t& barrier, uint32_t parity) {
  ptx::mbarrier_wait(ptx::smem_address(&barrier), parity);
}
__device__ __forceinline__ void arrive(const uint64_t& barrier) { ptx::mbarrier_arrive(ptx::smem_address(&barrier)); }

// How many times a ring of places has been used, and with that the place and the parity of its barriers' phase.
template <int kPlaces>
struct Ring {
  uint32_t used = 0;
  __device__ __forceinline__ uint32_t place() const { return used % kPlaces; }
  __device__ __forceinline__ uint32_t parity() const { return used / kPlaces & 1; }
  __device__ __forceinline__ void next() { ++used; }
};

}  // namespace prefill_wgmma
}  // namespace dlattn::cuda
