// One attention call as the kernels see it, whichever its addressing: dense, ragged or paged. Given to them by value.
//
// A row is one (query, query head) pair; the heads of a group, which share a kv head, are neighbours: row r of a (sequence,
// kv head) is query r / heads_per_kv_head, head kv_head * heads_per_kv_head +
// r % heads_per_kv_head.
#pragma once

#include <cstdint>

#include "cuda/attn/fast_div.h"
#include "dlattn/params.h"

namespace dlattn::cuda {

constexpr int64_t kUnlimited = INT64_C(1) << 61;

struct AttentionProblem {
  DType dtype = DType::kFloat32;
  int32_t head_dim = 0, head_dim_v = 0;
  int64_t batch_size = 0, num_heads = 0, num_kv_heads = 0, heads_per_kv_head = 1;

  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  void* out = nullptr;
  float* lse = nullptr;
  int64_t q_stride_batch = 0, q_stride_seq = 0, q_stride_head = 0;
  int64_t k_stride_batch = 0, k_stride_seq = 0, k_stride_head = 0;  // paged: stride_batch steps from page to page
  int64_t v_stride_batch = 0, v_stride_seq = 0, v_stride_head = 0;
  int64_t out_stride_batch = 0, out_stride_seq = 0, out_stride_head = 0;
  int64_t lse_stride_batch = 0, lse_stride_head = 0;
  // Rows of the tensor may be read or written 16 bytes (out_aligned: four elements) at a time.
  bool q_aligned = false, k_aligned = false, v_aligned = false, out_aligned = false, out_aligned_16 = false;

  // Which arrays there are; a question about sizes may leave their pointers null.
  bool ragged_q = false, ragged_k = false, paged = false;
  int64_t max_len_q = 0;    // of a sequence; ragged: all of them
  int64_t max_len_k = 0;    // a bound of every sequence's keys
  int64_t total_q = 0;      // queries of all sequences
  IndexArray cu_seqlens_q;  // ragged queries; else max_len_q each
  IndexArray cu_seqlens_k;  // ragged keys
  IndexArray seqlens_k;     // lengths in a dense or paged cache; else max_len_k each
  IndexArray page_table;    // paged
  int64_t page_table_stride_batch = 0, num_pages = 0;
  FastDiv page_size, heads_per_kv_head_div, kv_heads_div;

  float scale = 1.0f, softcap = 0.0f;
  int64_t window_left = kUnlimited, window_right = kUnlimited;  // causality is window_right 0
  AttentionMask mask;
  FloatArray sinks, alibi_slopes;
  int64_t alibi_stride_batch = 0;

  bool is_empty() const { return batch_size == 0 || total_q == 0 || num_heads == 0; }  // nothing to write
  DLATTN_HOST_DEVICE bool has_bias() const { return mask.data != nullptr || alibi_slopes.data != nullptr; }
  DLATTN_HOST_DEVICE bool has_score_options() const { return softcap > 0.0f || has_bias(); }
};

AttentionProblem make_problem(const AttentionParams& params);
AttentionProblem make_problem(const VarlenAttentionParams& params);
AttentionProblem make_problem(const PagedAttentionParams& params);

}  // namespace dlattn::cuda
