// In which order the (row tile, kv head) items of a call are taken. Pure.
#pragma once

#include "cuda/attn/row_tile.h"
#include "cuda/problem.h"

namespace dlattn::cuda {

// Causal: the longest tiles of all heads first, so that no long one starts last. Else, or where the lengths are on the
// device, the tiles of a kv head are neighbours, which share its keys in the L2.
struct WorkOrder {
  bool longest_first;
  int64_t tiles_per_sequence;
  FastDiv slots, batches, kv_heads;

  WorkOrder(const AttentionProblem& p, const RowTiles& tiles)
      : longest_first(p.window_right == 0 && !tiles.ragged),
        tiles_per_sequence(tiles.per_sequence.divisor),
        slots(tiles.num_slots > 0 ? tiles.num_slots : 1),
        batches(p.batch_size > 0 ? p.batch_size : 1),
        kv_heads(p.kv_heads_div) {}

  struct Item {
    int64_t slot, kv_head;
  };
  DLATTN_HOST_DEVICE Item find(int64_t index) const {
    if (!longest_first) {
      const int64_t kv_head = slots.div(index);
      return {index - kv_head * slots.divisor, kv_head};
    }
    const int64_t outer = kv_heads.div(index);  // rank of the tile in its sequence * batch_size + batch
    const int64_t rank = batches.div(outer);
    const int64_t batch = outer - rank * batches.divisor;
    return {batch * tiles_per_sequence + rank, index - outer * kv_heads.divisor};
  }
};

}  // namespace dlattn::cuda
