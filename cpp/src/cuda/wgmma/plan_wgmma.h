// How a call is cut up for attention_prefill_wgmma: parts of the keys, and the order of the work. Pure.
#pragma once

#include <algorithm>

#include "cuda/attn/row_tile.h"
#include "cuda/attn/split_plan.h"
#include "cuda/problem.h"
#include "element.h"

namespace dlattn::cuda {

// Where thread blocks would be fewer than SMs, keys are cut.
inline SplitPlan split_plan_wgmma(const AttentionProblem& p, const RowTiles& tiles, int key_tile, int num_sms) {
  constexpr int64_t kLeastTiles = 4;  // of a part: 4 us of work, about what the merge costs
  SplitPlan plan;
  plan.choices[0].min_keys = 0;
  const int64_t items = tiles.num_slots * p.num_heads;
  if (items <= 0) return plan;
  int64_t keys = p.max_len_k;
  if (p.window_left != kUnlimited && p.window_right != kUnlimited) {
    keys = std::min(keys, p.window_left + p.window_right + tiles.tile_rows);
  }
  const int64_t parts = std::min(num_sms / items, keys / (kLeastTiles * key_tile));
  if (parts < 2) return plan;
  plan.choices[1].min_keys = 2 * kLeastTiles * key_tile;
  plan.choices[1].splits = FastDiv(parts);
  plan.min_chunk = kLeastTiles * key_tile;
  plan.max_splits = plan.workspace_splits = parts;
  return plan;
}

// The keys of a sequence, on average if they are ragged.
inline int64_t typical_keys(const AttentionProblem& p) {
  return p.ragged_k ? p.max_len_k / std::max<int64_t>(p.batch_size, 1) : p.max_len_k;
}

// In which order items are taken (WorkList).
struct WorkOrderWgmma {
  static constexpr size_t kCounterBytes = 256;  // of workspace

  int64_t pairs;  // of (sequence, head), whose tiles lie together
  bool counted;   // more than thread blocks: handed out as those become free, by a counter in the workspace

  // `num_blocks`: that are on the SMs at once.
  WorkOrderWgmma(const AttentionProblem& p, const RowTiles& tiles, int num_blocks) {
    constexpr double kCached = 24e6;  // bytes of keys and values that a group of pairs reads
    const double bytes =
        static_cast<double>(p.max_len_k) * static_cast<double>((p.head_dim + p.head_dim_v) * size_of(p.dtype));
    const bool even = !p.ragged_q && !p.paged && p.window_right != 0;  // all items take about as long
    counted = tiles.num_slots * p.num_heads > num_blocks;
    pairs = p.heads_per_kv_head;
    if (even || p.ragged_q) return;
    pairs *=
        counted ? static_cast<int64_t>(std::max(kCached / std::max(bytes, 1.0), 1.0)) : p.num_kv_heads * p.batch_size;
  }
};

}  // namespace dlattn::cuda
