// The producer warp group of attention_prefill_wgmma: a warp that copies tiles, a thread that looks up items ahead of time.
#pragma once

#include <cuda.h>

#include "cuda/ptx/tma.cuh"
#include "cuda/wgmma/item_counter.cuh"
#include "cuda/wgmma/storage.cuh"

namespace dlattn::cuda {
namespace prefill_wgmma {

// Of q, k, v and out: axes (head_dim, query or key, head, batch), of pages (head_dim, row, head, page).
struct TensorMaps {
  CUtensorMap q, k, v, out;
};

// How a tile of keys is copied: in boxes, each of which lies in one page.
struct KeyBoxes {
  NarrowDiv page_size;
  int rows_of_page = 0;  // 0: not paged, one box a tile
  int box_rows = 0;
};

// One thread. An item is published when all have finished the one whose place it takes; if that one failed, it comes again. With a
// counter also not before the loader is near the end of the one before. The end, when all that there were are finished.
template <typename T, class Config>
__device__ __forceinline__ void schedule(const AttentionProblem& p, const WorkList& list,
                                         SharedStorage<T, Config>& smem) {
  const int num_blocks = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
  constexpr uint32_t kItems = SharedStorage<T, Config>::kItems;
  Ring<kItems> ring;
  if (list.counter != nullptr && block == 0) list.counter->set_up(list.key);
  bool first = true, more = true;
  for (;; ring.next()) {
    WorkItem& item = smem.items[ring.place()];
    int* failed = &smem.failed[ring.place()];
    wait(smem.item_empty[ring.place()], ring.parity() ^ 1);
    // Taken late, an item goes to a block that is really about to be free.
    if (list.counter != nullptr && ring.used > 0) wait(smem.item_late, (ring.used - 1) & 1);
    if (*failed == 0) {
      bool found = false;
      while (more && !found) {
        const int index = first                     ? block
                          : list.counter == nullptr ? list.num_items
                                                    : list.counter->take(list.key, list.num_items, num_blocks);
        first = false;
        more = index < list.num_items;
        found = more && make_item<Config>(p, list, index, item);
      }
      if (!found) {
        item.is_end = true;
        Ring<kItems> other{ring.used < kItems ? 0 : ring.used - kItems + 1};
#pragma unroll 1
        for (; other.used < ring.used; other.next()) {
          wait(smem.item_empty[other.place()], other.parity());
          if (smem.failed[other.place()] == 0) continue;
          item.copy(smem.items[other.place()]);
          failed = &smem.failed[other.place()];
          break;
        }
      }
    }
    if (*failed != 0) *failed = 0, item.careful = true;
    item.q_parity = ring.used & 1;
    const bool is_end = item.is_end;
    if (!is_end) {
#pragma unroll 1
      for (int group = 0; group < Config::kGroups; ++group) {
        item.walks[group] = item.template walk_of<Config::kTileKV>(list, group);
      }
    }
    arrive(smem.item_full[ring.place()]);
    if (is_end) return;
  }
}

// A warp.
template <typename T, class Config>
struct Loader {
  using Storage = SharedStorage<T, Config>;
  static constexpr int kKeys = Config::kTileKV, kPanels = Config::kPanels;
  static constexpr uint32_t kTileBytes = kPanels * kKeys * 128;

  const AttentionProblem& p;
  const TensorMaps& maps;
  const KeyBoxes& boxes;
  Storage& smem;
  const int lane;
  const bool counted;

  // Of a tile of a paged cache: where this lane's box is.
  struct Place {
    int page = 0, row = 0;
  };
  __device__ __forceinline__ Place place_of(const WorkItem& item, int tile) const {
    Place place;
    const int key = tile * kKeys + lane * boxes.box_rows;
    if (boxes.rows_of_page == 0 || lane * boxes.box_rows >= kKeys) return place;
    place.row = boxes.rows_of_page;  // past the page: a box of zeros
    if (key >= item.len_k || key + boxes.box_rows <= item.begin) return place;
    const int index = static_cast<int>(boxes.page_size.div(static_cast<uint32_t>(key)));
    const int64_t entry = item.batch * p.page_table_stride_batch + index;
    place.page = static_cast<int>(bounded_index(p.page_table, entry, 0, p.num_pages - 1));
    place.row = key - index * boxes.rows_of_page;
    return place;
  }

  __device__ __forceinline__ void copy_tile(const WorkItem& item, int tile, const Place& place, const CUtensorMap* map,
                                            T (&to)[kPanels][kKeys][64], const uint64_t& full) const {
    const uint32_t barrier = ptx::smem_address(&full);
    if (lane == 0) ptx::mbarrier_arrive_expect(barrier, kTileBytes);
    if (boxes.rows_of_page == 0) {
      if (lane == 0) {
#pragma unroll
        for (int panel = 0; panel < kPanels; ++panel) {
          ptx::tma_load_4d(ptx::smem_address(to[panel]), map, barrier, panel * 64, item.k_row + tile * kKeys,
                           item.kv_head, item.k_batch);
        }
      }
      return;
    }
    __syncwarp();
    if (lane * boxes.box_rows < kKeys) {
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel) {
        ptx::tma_load_4d(ptx::smem_address(to[panel]) + lane * boxes.box_rows * 128, map, barrier, panel * 64,
                         place.row, item.kv_head, place.page);
      }
    }
  }

  // Values that no row may see, but may be NaN, lie before `begin` and from `end` on: keys of the tile that become 0.
  struct Unclean {
    int begin, end;
    __device__ __forceinline__ bool any() const { return begin > 0 || end < kKeys; }
  };
  __device__ __forceinline__ Unclean unclean(const WorkItem& item, int tile) const {
    const int first = tile * kKeys;
    const bool ends_in_memory = p.paged || p.ragged_k || p.seqlens_k.data != nullptr;  // else the copy brings zeros
    return {p.paged ? max(item.begin - first, 0) : 0, ends_in_memory ? max(min(item.len_k - first, kKeys), 0) : kKeys};
  }
  __device__ __forceinline__ void clean(const Unclean& rows, T (&tile)[kPanels][kKeys][64]) const {
    const uint4 zero = make_uint4(0, 0, 0, 0);
#pragma unroll 1
    for (int panel = 0; panel < kPanels; ++panel) {
      auto* chunks = reinterpret_cast<uint4*>(tile[panel]);  // 8 a row
#pragma unroll 1
      for (int i = lane; i < rows.begin * 8; i += 32) chunks[i] = zero;
#pragma unroll 1
      for (int i = rows.end * 8 + lane; i < kKeys * 8; i += 32) chunks[i] = zero;
    }
    ptx::fence_async_shared();
    __syncwarp();
  }

  __device__ __forceinline__ void run() const {
    Ring<Storage::kItems> items;
    Ring<Config::kStages> ring;
    Ring<1> raw;
    for (;; items.next()) {
      wait(smem.item_full[items.place()], items.parity());
      const WorkItem& item = smem.items[items.place()];
      if (item.is_end) return;
      const int late_tile = min(item.first_tile + 1, item.last_tile);
      Place place = place_of(item, item.last_tile);
      Unclean rows = {0, kKeys};  // of the tile before: cleared once the next k is on its way
      uint32_t stage_before = 0;
      const auto clean_before = [&] {
        if (!rows.any()) return;
        wait(smem.v_raw, raw.parity());
        raw.next();
        clean(rows, smem.v[stage_before]);
        if (lane == 0) arrive(smem.v_full[stage_before]);
      };
#pragma unroll 1
      for (int tile = item.last_tile; tile >= item.first_tile; --tile) {
        const uint32_t stage = ring.place(), empty = ring.parity() ^ 1;
        wait(smem.k_empty[stage], empty);
        __syncwarp();
        copy_tile(item, tile, place, &maps.k, smem.k[stage], smem.k_full[stage]);
        if (tile == item.last_tile) {
          wait(smem.q_empty, item.q_parity ^ 1);
          copy_q(item);
        }
        if (tile == late_tile) near_the_end();
        clean_before();
        rows = unclean(item, tile), stage_before = stage;
        wait(smem.v_empty[stage], empty);
        copy_tile(item, tile, place, &maps.v, smem.v[stage], rows.any() ? smem.v_raw : smem.v_full[stage]);
        if (tile > item.first_tile) place = place_of(item, tile - 1);
        ring.next();
      }
      clean_before();
      arrive(smem.item_empty[items.place()]);
    }
  }

  // Of an item: only with a counter does anybody wait for that.
  __device__ __forceinline__ void near_the_end() const {
    if (counted && lane == 0) arrive(smem.item_late);
  }

  __device__ __forceinline__ void copy_q(const WorkItem& item) const {
    if (lane != 0) return;
    const uint32_t barrier = ptx::smem_address(&smem.q_full);
    ptx::mbarrier_arrive_expect(barrier, kPanels * Config::kTileQ * 128);
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      ptx::tma_load_4d(ptx::smem_address(smem.q[panel]), &maps.q, barrier, panel * 64, item.q_row, item.head,
                       item.q_batch);
    }
  }
};

}  // namespace prefill_wgmma
}  // namespace dlattn::cuda
