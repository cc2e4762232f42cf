// Which rows a tile holds: tiles of a fixed number of rows over all sequences, found without a list of tiles. Pure.
//
// Ragged sequences: sequence b owns the slots floor(first_row(b) / tile_rows) + b up to its successor's, first_row being the
// rows of all sequences before it. That is at least one slot for each started tile, so some slots are left empty, at most
// one a sequence; the owner of a slot is found by bisection.
#pragma once

#include <cstdint>

#include "cuda/attn/fast_div.h"
#include "cuda/attn/index.h"
#include "dlattn/params.h"

namespace dlattn::cuda {

struct RowTile {
  int64_t batch = 0;
  int64_t first_row = -1;  // of the (sequence, kv head); -1: an empty slot
};

struct RowTiles {
  int64_t batch_size = 0, heads_per_kv_head = 1, total_q = 0;
  int32_t tile_rows = 1;
  bool ragged = false;      // else all sequences have per_sequence tiles
  IndexArray cu_seqlens_q;  // ragged
  FastDiv per_sequence;
  int64_t num_slots = 0;  // of one kv head

  // `max_len_q`: queries of each sequence, unless they are ragged.
  // `cu_seqlens`: null unless the queries are ragged, or where only num_slots is asked for.
  RowTiles(int64_t batch, int64_t heads_per_kv, int64_t max_len_q, int64_t total, const IndexArray& cu_seqlens,
           int rows, bool is_ragged)
      : batch_size(batch),
        heads_per_kv_head(heads_per_kv),
        total_q(total),
        tile_rows(rows),
        ragged(is_ragged),
        cu_seqlens_q(cu_seqlens) {
    if (ragged) {
      num_slots = total * heads_per_kv_head / rows + batch;
    } else {
      const int64_t tiles = (max_len_q * heads_per_kv_head + rows - 1) / rows;
      per_sequence = FastDiv(tiles > 0 ? tiles : 1);
      num_slots = tiles * batch;
    }
  }

  // The longest (last) tiles of a sequence come first.
  DLATTN_HOST_DEVICE RowTile find(int64_t slot) const {
    RowTile tile;
    if (!ragged) {
      tile.batch = per_sequence.div(slot);
      const int64_t index = slot - tile.batch * per_sequence.divisor;
      tile.first_row = (per_sequence.divisor - 1 - index) * tile_rows;
      return tile;
    }
    int64_t low = 0, high = batch_size;  // first_slot(low) <= slot < first_slot(high)
    while (high - low > 1) {
      const int64_t middle = low + (high - low) / 2;
      if (first_slot(middle) <= slot) {
        low = middle;
      } else {
        high = middle;
      }
    }
    tile.batch = low;
    const int64_t begin = bounded_index(cu_seqlens_q, low, 0, total_q);
    const int64_t end = bounded_index(cu_seqlens_q, low + 1, begin, total_q);
    const int64_t tiles = ((end - begin) * heads_per_kv_head + tile_rows - 1) / tile_rows;
    const int64_t index = slot - first_slot(low);
    if (index >= 0 && index < tiles) tile.first_row = (tiles - 1 - index) * tile_rows;
    return tile;
  }

 private:
  DLATTN_HOST_DEVICE int64_t first_slot(int64_t batch) const {
    return bounded_index(cu_seqlens_q, batch, 0, total_q) * heads_per_kv_head / tile_rows + batch;
  }
};

}  // namespace dlattn::cuda
