// One work item of attention_prefill_mma: a tile of rows of a sequence and kv head, and the part of the keys it walks over.
#pragma once

#include "cuda/attn/row_tile.h"
#include "cuda/attn/sequence.h"
#include "cuda/attn/split_plan.h"
#include "cuda/attn/work_order.h"

namespace dlattn::cuda {
namespace prefill_mma {

struct WorkItem {
  int64_t index;  // among all
  int64_t slot, kv_head, split;
  int64_t first_row;
  Sequence sequence;
  KeyRange keys = {0, 0};
  int num_rows = 0;  // 0: nothing to do
  bool is_part = false;

  __device__ __forceinline__ WorkItem(const AttentionProblem& p, const RowTiles& tiles, const SplitPlan& plan,
                                      const WorkOrder& order, int64_t num_items, int64_t work)
      : WorkItem(p, tiles, plan, work, plan.max_splits == 1 ? 0 : work / num_items, order, num_items) {}

  __device__ __forceinline__ int64_t query_of(const AttentionProblem& p, int row) const {
    return p.heads_per_kv_head_div.div(first_row + row);
  }
  __device__ __forceinline__ int64_t head_of(const AttentionProblem& p, int row, int64_t query) const {
    return kv_head * p.heads_per_kv_head + (first_row + row - query * p.heads_per_kv_head);
  }

 private:
  __device__ __forceinline__ WorkItem(const AttentionProblem& p, const RowTiles& tiles, const SplitPlan& plan,
                                      int64_t work, int64_t part, const WorkOrder& order, int64_t num_items)
      : WorkItem(p, tiles, plan, work, part, order.find(work - part * num_items)) {}

  __device__ __forceinline__ WorkItem(const AttentionProblem& p, const RowTiles& tiles, const SplitPlan& plan,
                                      int64_t work, int64_t part, const WorkOrder::Item& item)
      : WorkItem(p, tiles, plan, work, part, item, tiles.find(item.slot)) {}

  __device__ __forceinline__ WorkItem(const AttentionProblem& p, const RowTiles& tiles, const SplitPlan& plan,
                                      int64_t work, int64_t part, const WorkOrder::Item& item, const RowTile& tile)
      : index(work),
        slot(item.slot),
        kv_head(item.kv_head),
        split(part),
        first_row(tile.first_row),
        sequence(p, tile.batch) {
    if (first_row < 0) return;
    num_rows =
        static_cast<int>(min(static_cast<int64_t>(tiles.tile_rows), sequence.len_q * p.heads_per_kv_head - first_row));
    keys = sequence.visible_keys(p, query_of(p, 0), query_of(p, num_rows - 1));
    if (plan.max_splits == 1) return;
    const int64_t num_splits = plan.num_splits(keys.end - keys.begin);
    is_part = num_splits > 1;
    if (split >= num_splits) {
      num_rows = 0;
    } else {
      keys = plan.part(keys, split);
    }
  }
};

}  // namespace prefill_mma
}  // namespace dlattn::cuda
