// How a call is cut up for a row of the kernel table.
#pragma once

#include <algorithm>

#include "cuda/attn/partial.h"
#include "cuda/attn/row_tile.h"
#include "cuda/kernel_table.h"

namespace dlattn::cuda {

inline RowTiles row_tiles(const KernelRow& row, const AttentionProblem& p) {
  return RowTiles(p.batch_size, p.heads_per_kv_head, p.max_len_q, p.total_q, p.cu_seqlens_q, row.tile_rows, p.ragged_q);
}

inline SplitPlan split_plan(const KernelRow& row, const AttentionProblem& p, const RowTiles& tiles,
                            const DeviceCaps& caps) {
  if (row.phase != Phase::kDecode) return SplitPlan();
  int64_t max_keys = p.max_len_k;
  if (p.window_left != kUnlimited && p.window_right != kUnlimited) {  // what a tile's queries see together
    const int64_t queries = (row.tile_rows + p.heads_per_kv_head - 2) / p.heads_per_kv_head + 1;
    max_keys = std::min(max_keys, p.window_left + p.window_right + queries);
  }
  return SplitPlan::make(tiles.num_slots * p.num_kv_heads, max_keys,
                         static_cast<int64_t>(caps.num_sms) * row.blocks_per_sm);
}

}  // namespace dlattn::cuda
