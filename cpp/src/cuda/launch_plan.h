// How a call is cut up for a row of the kernel table.
#pragma once

#include <algorithm>

#include "cuda/attn/partial.h"
#include "cuda/attn/row_tile.h"
#include "cuda/kernel_table.h"
#include "cuda/wgmma/plan_wgmma.h"
#include "element.h"

namespace dlattn::cuda {

// Of a kv head. Of a query head for wgmma, which does not pack a group's heads into a tile.
inline RowTiles row_tiles(const KernelRow& row, const AttentionProblem& p) {
  const int64_t heads = row.family == Family::kWgmma ? 1 : p.heads_per_kv_head;
  return RowTiles(p.batch_size, heads, p.max_len_q, p.total_q, p.cu_seqlens_q, row.tile_rows, p.ragged_q);
}

// Whether the row may cut the keys: always for few queries; the mma prefill does so if a tile holds all of a kv head's rows.
inline bool splits_keys(const KernelRow& row, const AttentionProblem& p) {
  if (row.phase == Phase::kDecode) return true;
  return row.family == Family::kMma && !p.ragged_q && p.max_len_q * p.heads_per_kv_head <= row.tile_rows;
}

inline SplitPlan split_plan(const KernelRow& row, const AttentionProblem& p, const RowTiles& tiles,
                            const DeviceCaps& caps) {
  if (row.family == Family::kWgmma) return split_plan_wgmma(p, tiles, row.key_tile, std::max(caps.num_sms, 1));
  if (!splits_keys(row, p)) return SplitPlan();
  SplitInput in;
  in.items = tiles.num_slots * p.num_kv_heads;
  in.max_keys = p.max_len_k;
  if (p.window_left != kUnlimited && p.window_right != kUnlimited) {  // what a tile's queries see together
    const int64_t queries = (row.tile_rows + p.heads_per_kv_head - 2) / p.heads_per_kv_head + 1;
    in.max_keys = std::min(in.max_keys, p.window_left + p.window_right + queries);
  }
  in.lengths_differ = p.ragged_k || p.paged || p.seqlens_k.data != nullptr;
  // mma decode: a tile for each warp
  in.min_chunk = row.phase == Phase::kPrefill ? 256 : row.family == Family::kMma && row.max_head_dim > 64 ? 64 : 128;
  in.num_sms = std::max(caps.num_sms, 1);
  // An SM keeps 1 KiB of shared memory for each thread block.
  const int resident = (caps.max_shared_bytes + 1024) / (row.shared_bytes + 1024);
  in.blocks_per_sm = std::clamp(resident, 1, std::max(row.blocks_per_sm, 1));
  in.bytes_per_key = static_cast<double>((p.head_dim + p.head_dim_v) * size_of(p.dtype));
  const int64_t rows = std::min<int64_t>(row.tile_rows, p.max_len_q * p.heads_per_kv_head);
  in.bytes_per_split = 2.0 * static_cast<double>(rows) * (p.head_dim_v + 2) * sizeof(float);
  // 64 KiB in flight: 48 bytes/ns of a thread block that is alone on an SM of an H200; at 55 its arithmetic limits it.
  // Pages cost a thread block that is alone half of it and more, by the key: measured at 512 bytes a key.
  const double of_pages = (p.page_size.divisor % 16 == 0 ? 28.0 : 23.0) * std::max(1.0, in.bytes_per_key / 512);
  const double limit = p.paged ? std::min(of_pages, 55.0) : 55.0;
  constexpr double kPerByteInFlight = 48.0 / (64 * 1024);
  if (row.bytes_in_flight > 0) in.bytes_per_ns_of_block = std::min(limit, kPerByteInFlight * row.bytes_in_flight);
  return SplitPlan::make(in);
}

}  // namespace dlattn::cuda
