// Partial results of split keys: where they lie in the workspace. float32.
//   one (row tile, kv head) item has max_splits parts of tile_rows rows each: acc [head_dim_v rounded up to 4], row_max, row_sum
#pragma once

#include <cstdint>

#include "cuda/attn/split_plan.h"
#include "host_device.h"

namespace dlattn::cuda {

struct Partials {
  float* acc = nullptr;      // [items, max_splits, tile_rows, row_floats]; not divided by row_sum
  float* row_max = nullptr;  // [items, max_splits, tile_rows]
  float* row_sum = nullptr;
  int64_t max_splits = 1;
  int32_t tile_rows = 1, row_floats = 0;

  Partials(void* workspace, int64_t items, const SplitPlan& plan, int rows, int head_dim_v)
      : max_splits(plan.max_splits), tile_rows(rows), row_floats((head_dim_v + 3) / 4 * 4) {
    const int64_t count = items * max_splits * tile_rows;
    acc = static_cast<float*>(workspace);
    if (workspace == nullptr) return;
    row_max = acc + count * row_floats;
    row_sum = row_max + count;
  }

  static int64_t bytes(int64_t items, const SplitPlan& plan, int rows, int head_dim_v) {
    if (plan.workspace_splits <= 1) return 0;
    return items * plan.workspace_splits * rows * ((head_dim_v + 3) / 4 * 4 + 2) * static_cast<int64_t>(sizeof(float));
  }

  // Of one row: its acc is at `index` * row_floats, its row_max and row_sum at `index`.
  DLATTN_HOST_DEVICE int64_t index(int64_t item, int64_t split, int row) const {
    return (item * max_splits + split) * tile_rows + row;
  }
};

}  // namespace dlattn::cuda
