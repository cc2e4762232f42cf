// A work item of attention_prefill_wgmma as the scheduler describes it to the other roles.
#pragma once

#include <cstring>

#include "cuda/attn/index.h"
#include "cuda/wgmma/work_list.h"

namespace dlattn::cuda {
namespace prefill_wgmma {

// Which tiles of keys a group walks over, from the last to the first: those with keys that some of its rows sees. Of them
// those from whole_begin up to whole_end are seen by all rows.
struct alignas(16) TileWalk {
  int first, last, whole_begin, whole_end;
};

// What the scheduler tells the others about an item.
struct WorkItem {
  static constexpr int kMostGroups = 3;
  bool is_end;   // there are no more; the rest is not set
  bool careful;  // see `softmax` in attention_prefill_wgmma.cuh
  bool is_part;
  int head, kv_head, batch, slot, part;
  int first_query, num_rows;  // of the sequence
  int offset;                 // query i stands at key i + offset
  int begin, end;             // keys that some row sees, of the part
  int len_k;
  int first_tile, last_tile;  // of keys; at least one
  int q_row, q_batch;         // coordinates of the first query in q and out
  uint32_t q_parity;          // of the phase in which q arrives
  int k_row, k_batch;         // of key 0 in k and v, unless they are paged
  TileWalk walks[kMostGroups];

  // In few registers.
  __device__ __forceinline__ void copy(const WorkItem& other) {
    const auto* from = reinterpret_cast<const char*>(&other);
    auto* to = reinterpret_cast<char*>(this);
#pragma unroll 1
    for (int i = 0; i < static_cast<int>(sizeof(WorkItem)); i += 4) memcpy(to + i, from + i, 4);
  }

  __device__ __forceinline__ int rows_of(int group) const { return num_rows - 64 * group; }

  // Keys that a row sees: from low up to high.
  __device__ __forceinline__ int low_of(const WorkList& list, int row) const {
    return max(first_query + row + offset - list.window_left, begin);
  }
  __device__ __forceinline__ int high_of(const WorkList& list, int row) const {
    return min(first_query + row + offset + list.window_right + 1, end);
  }

  template <int kKeys>
  __device__ __forceinline__ TileWalk walk_of(const WorkList& list, int group) const {
    // Both bounds grow with the row. A group without rows takes one tile, as if it had the last one.
    const int first = min(group * 64, num_rows - 1), last = min(first + 63, num_rows - 1);
    const int low = low_of(list, first), high = high_of(list, last);
    TileWalk walk;
    walk.first = min(max(low / kKeys, first_tile), last_tile);
    walk.last = min(max((high - 1) / kKeys, walk.first), last_tile);
    if (rows_of(group) <= 0) walk.last = walk.first;
    walk.whole_begin = careful ? kFar : (low_of(list, last) + kKeys - 1) / kKeys;
    walk.whole_end = careful ? 0 : (high_of(list, first) - 1) / kKeys;
    return walk;
  }
};

__device__ __forceinline__ int bounded(const IndexArray& array, int i, int low, int high) {
  return static_cast<int>(bounded_index(array, i, low, high));
}

// False: there is no such tile, or no such part of its keys.
template <class Config>
__device__ __forceinline__ bool make_item(const AttentionProblem& p, const WorkList& list, int index, WorkItem& item) {
  constexpr int kRows = Config::kTileQ, kKeys = Config::kTileKV;
  const WorkList::Place place = list.find(index);
  const int total_q = static_cast<int>(p.total_q), max_len_k = static_cast<int>(p.max_len_k);
  int batch = 0, len_q = static_cast<int>(p.max_len_q), first_query;
  if (p.ragged_q) {  // attn/row_tile.h, whose slots these are
    const auto first_row = [&](int b) { return bounded(p.cu_seqlens_q, b, 0, total_q); };
    int above = static_cast<int>(p.batch_size);
    while (above - batch > 1) {
      const int middle = batch + (above - batch) / 2;
      (first_row(middle) / kRows + middle <= place.rank ? batch : above) = middle;
    }
    item.q_row = first_row(batch);
    len_q = bounded(p.cu_seqlens_q, batch + 1, item.q_row, total_q) - item.q_row;
    const int tile = place.rank - item.q_row / kRows - batch, num_tiles = (len_q + kRows - 1) / kRows;
    if (tile < 0 || tile >= num_tiles) return false;
    first_query = (num_tiles - 1 - tile) * kRows;
    item.q_row += first_query;
    item.q_batch = 0;
    item.head = place.pair;
    item.slot = place.rank;
  } else {
    batch = static_cast<int>(list.heads.div(static_cast<uint32_t>(place.pair)));
    item.head = place.pair - batch * list.num_heads;
    first_query = (list.tiles - 1 - place.rank) * kRows;
    item.q_row = first_query;
    item.q_batch = batch;
    item.slot = batch * list.tiles + place.rank;
  }
  int len_k = max_len_k;
  item.k_row = 0;
  item.k_batch = batch;
  if (p.ragged_k) {
    item.k_row = bounded(p.cu_seqlens_k, batch, 0, max_len_k);
    len_k = bounded(p.cu_seqlens_k, batch + 1, item.k_row, max_len_k) - item.k_row;
    item.k_batch = 0;
  } else if (p.seqlens_k.data != nullptr) {
    len_k = bounded(p.seqlens_k, batch, 0, max_len_k);
  }
  item.is_end = false;
  item.careful = false;
  item.batch = batch;
  item.kv_head = static_cast<int>(list.heads_per_kv_head.div(static_cast<uint32_t>(item.head)));
  item.first_query = first_query;
  item.num_rows = min(len_q - first_query, kRows);
  item.offset = len_k - len_q;
  item.len_k = len_k;
  int begin = max(first_query + item.offset - list.window_left, 0);
  int end = min(first_query + item.num_rows + item.offset + list.window_right, len_k);
  end = max(end, begin);
  item.part = place.part;
  item.is_part = list.is_split(end - begin);
  if (item.is_part) {
    const int chunk = list.chunk(end - begin);
    begin += place.part * chunk;
    if (begin >= end) return false;
    end = min(begin + chunk, end);
  } else if (place.part > 0) {
    return false;
  }
  item.begin = begin, item.end = end;
  item.last_tile = max(end - 1, begin) / kKeys;
  item.first_tile = begin / kKeys;
  return true;
}

}  // namespace prefill_wgmma
}  // namespace dlattn::cuda
