// In which order thread blocks of attention_prefill_wgmma take the work items: (part of the keys, row tile, head). Pure.
#pragma once

#include <cstdint>

#include "cuda/any/narrow_div.h"
#include "cuda/attn/row_tile.h"
#include "cuda/attn/split_plan.h"
#include "cuda/problem.h"

namespace dlattn::cuda {
namespace prefill_wgmma {

struct ItemCounter;  // item_counter.cuh

constexpr int kFar = (1 << 30) - 1;  // a window beyond all keys; positions are less (select.cpp)

// Items are walked over in groups of `pairs` (sequence, head) pairs, whose keys the L2 holds; in a group the longest
// tiles come first. Ragged queries: a pair is a head, with the slots of all sequences.
struct WorkList {
  NarrowDiv per_part, per_group, pairs, last_pairs, heads, heads_per_kv_head;
  int items_per_part = 0, num_items = 0;
  int tiles = 1;  // of a pair
  int pairs_of_group = 1, num_groups = 1, pairs_of_last_group = 1;
  int num_heads = 1;
  int window_left = kFar, window_right = kFar;
  // Scores times scale_log2 are exponents of 2; with a softcap tanh(x) of them are, e^2x = 2^(score * cap_scale).
  bool capped = false;
  float cap_scale = 0.0f, scale_log2 = 1.0f;
  // As in the split plan: from so many keys on they are cut, into `parts` of them.
  int min_keys = INT32_MAX, min_chunk = 1;
  NarrowDiv parts_div;
  int parts = 1;
  ItemCounter* counter = nullptr;  // hands out items; null: there are as many blocks
  uint64_t key = 0;                // of the launch, for the counter

  // `group`: the pairs that a group shall have.
  WorkList(const AttentionProblem& p, const RowTiles& row_tiles, const SplitPlan& plan, int64_t group,
           ItemCounter* next)
      : tiles(static_cast<int>(row_tiles.ragged ? row_tiles.num_slots : row_tiles.per_sequence.divisor)),
        num_heads(static_cast<int>(p.num_heads)),
        window_left(static_cast<int>(p.window_left < kFar ? p.window_left : kFar)),
        window_right(static_cast<int>(p.window_right < kFar ? p.window_right : kFar)),
        parts(static_cast<int>(plan.max_splits)),
        counter(next) {
    const int64_t all = row_tiles.ragged ? p.num_heads : p.num_heads * p.batch_size;
    const int64_t in_group = group < 1 ? 1 : group > all ? all : group;
    pairs_of_group = static_cast<int>(in_group);
    num_groups = static_cast<int>((all + in_group - 1) / in_group);
    pairs_of_last_group = static_cast<int>(all - (num_groups - 1) * in_group);
    items_per_part = static_cast<int>(all * tiles);
    num_items = static_cast<int>(items_per_part * parts);
    per_part = NarrowDiv(items_per_part);
    per_group = NarrowDiv(in_group * tiles);
    pairs = NarrowDiv(in_group);
    last_pairs = NarrowDiv(pairs_of_last_group);
    heads = NarrowDiv(p.num_heads);
    heads_per_kv_head = NarrowDiv(p.heads_per_kv_head);
    if (parts == 1) return;
    min_keys = static_cast<int>(plan.choices[1].min_keys);
    min_chunk = static_cast<int>(plan.min_chunk);
    parts_div = NarrowDiv(parts);
  }

  DLATTN_HOST_DEVICE int chunk(int keys) const {
    const int size = static_cast<int>(parts_div.div(static_cast<uint32_t>(keys + parts - 1))) + 31;
    return size / 32 * 32 < min_chunk ? min_chunk : size / 32 * 32;
  }
  DLATTN_HOST_DEVICE bool is_split(int keys) const { return keys >= min_keys && keys > chunk(keys); }

  struct Place {
    int part, pair, rank;  // rank: of the tile, from the longest on
  };
  DLATTN_HOST_DEVICE Place find(int index) const {
    const int part = items_per_part == num_items ? 0 : static_cast<int>(per_part.div(static_cast<uint32_t>(index)));
    const int work = index - part * items_per_part;
    const int group = static_cast<int>(per_group.div(static_cast<uint32_t>(work)));
    const int in_group = work - group * pairs_of_group * tiles;
    const bool is_last = group == num_groups - 1;
    const NarrowDiv& divide = is_last ? last_pairs : pairs;
    const int rank = static_cast<int>(divide.div(static_cast<uint32_t>(in_group)));
    const int size = is_last ? pairs_of_last_group : pairs_of_group;
    return {part, group * pairs_of_group + in_group - rank * size, rank};
  }
};

}  // namespace prefill_wgmma
}  // namespace dlattn::cuda
