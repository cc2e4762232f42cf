// Checks that the attention operations share.
#pragma once

#include "core/check.h"
#include "core/overlap.h"
#include "dlattn/params.h"

namespace dlattn::core {

// What the arrays of AttentionOptions must fit. Ragged masks need at least the longest sequence, which only values tell.
struct OptionShapes {
  int64_t batch_size, num_heads;
  int64_t seqlen_q, seqlen_k;  // -1: ragged
};

// Sizes >= 0, head counts, head_dims and dtype; for every struct that has them.
template <typename Params>
void check_heads(const Check& check, const Params& p) {
  check.device(p.device);
  check.float_dtype("q.dtype", p.dtype);
  check.at_least("batch_size", p.batch_size, 0);
  check.at_least("q.num_heads", p.num_heads, 0);
  check.at_least("k.num_kv_heads", p.num_kv_heads, p.num_heads > 0 ? 1 : 0);
  if (p.num_heads > 0 && p.num_heads % p.num_kv_heads != 0) {
    check.fail("q.num_heads", std::to_string(p.num_heads), "a multiple of " + std::to_string(p.num_kv_heads),
               "k.num_kv_heads");
  }
  check.in_range("q.head_dim", p.head_dim, 1, 256);
  check.in_range("v.head_dim_v", p.head_dim_v, 1, 256);
}

void check_options(const Check& check, const AttentionOptions& options, const OptionShapes& shapes);
void check_option_pointers(const Check& check, const AttentionOptions& options, const OptionShapes& shapes);

// mask, sinks, alibi_slopes as inputs of check_memory; returns how many regions were filled (always 3).
int option_regions(const AttentionOptions& options, const OptionShapes& shapes, Region* regions);

// Host arrays only: non-decreasing within 0..total; returns the longest sequence.
int64_t check_cu_seqlens(const Check& check, const char* name, const IndexArray& array, int64_t batch_size,
                         int64_t total, const char* total_name);

// Ragged and paged calls on the CPU: the mask covers the longest sequences.
void check_mask_covers(const Check& check, const AttentionMask& mask, int64_t longest_q, int64_t longest_k);

}  // namespace dlattn::core
