#include "cuda/problem.h"

#include <algorithm>
#include <cmath>

#include "cuda/rows_aligned.h"
#include "element.h"

namespace dlattn::cuda {
namespace {

// Of sizes; no overflow, whatever a question asks.
int64_t product(int64_t a, int64_t b) {
  int64_t result = 0;
  return __builtin_mul_overflow(a, b, &result) || result > kUnlimited ? kUnlimited : result;
}

int64_t window(int64_t given) { return given < 0 || given > kUnlimited ? kUnlimited : given; }

// What all three calls have in common.
template <typename Params>
AttentionProblem common(const Params& params) {
  AttentionProblem p;
  p.dtype = params.dtype;
  p.head_dim = static_cast<int32_t>(params.head_dim);
  p.head_dim_v = static_cast<int32_t>(params.head_dim_v);
  p.batch_size = params.batch_size;
  p.num_heads = params.num_heads;
  p.num_kv_heads = params.num_kv_heads;
  p.heads_per_kv_head = params.num_kv_heads == 0 ? 1 : params.num_heads / params.num_kv_heads;
  p.heads_per_kv_head_div = FastDiv(std::max<int64_t>(p.heads_per_kv_head, 1));
  p.kv_heads_div = FastDiv(std::max<int64_t>(p.num_kv_heads, 1));
  p.q = params.q;
  p.out = params.out;
  p.lse = params.lse;
  const AttentionOptions& options = params.options;
  p.scale = options.scale ? *options.scale : 1.0f / std::sqrt(static_cast<float>(params.head_dim));
  p.softcap = options.softcap;
  p.window_left = window(options.window_left);
  p.window_right = options.is_causal ? 0 : window(options.window_right);
  p.mask = options.mask;
  p.sinks = options.sinks;
  p.alibi_slopes = options.alibi_slopes;
  p.alibi_stride_batch = options.alibi_stride_batch;
  return p;
}

// The same of the two calls whose tensors have a batch axis.
template <typename Params>
AttentionProblem common_batched(const Params& params) {
  AttentionProblem p = common(params);
  p.q_stride_batch = params.q_stride_batch, p.q_stride_seq = params.q_stride_seq;
  p.q_stride_head = params.q_stride_head;
  p.k_stride_seq = params.k_stride_seq, p.k_stride_head = params.k_stride_head;
  p.v_stride_seq = params.v_stride_seq, p.v_stride_head = params.v_stride_head;
  p.out_stride_batch = params.out_stride_batch, p.out_stride_seq = params.out_stride_seq;
  p.out_stride_head = params.out_stride_head;
  p.lse_stride_batch = params.lse_stride_batch, p.lse_stride_head = params.lse_stride_head;
  p.seqlens_k = params.seqlens_k;
  return p;
}

// Sizes of the batch and sequence axes, `b` and `n` of q and out, `b_k` and `n_k` of k and v (paged: pages and their rows).
void set_aligned(AttentionProblem* p, int64_t b, int64_t n, int64_t b_k, int64_t n_k) {
  const int64_t h = p->num_heads, h_kv = p->num_kv_heads, item = size_of(p->dtype);
  const auto aligned = [&](const void* data, int64_t dim, int64_t bytes, std::initializer_list<Axis> axes) {
    return dim * item % bytes == 0 && rows_aligned(data, bytes, item, axes);
  };
  p->q_aligned =
      aligned(p->q, p->head_dim, kPieceBytes, {{b, p->q_stride_batch}, {n, p->q_stride_seq}, {h, p->q_stride_head}});
  p->k_aligned = aligned(p->k, p->head_dim, kPieceBytes,
                         {{b_k, p->k_stride_batch}, {n_k, p->k_stride_seq}, {h_kv, p->k_stride_head}});
  p->v_aligned = aligned(p->v, p->head_dim_v, kPieceBytes,
                         {{b_k, p->v_stride_batch}, {n_k, p->v_stride_seq}, {h_kv, p->v_stride_head}});
  const std::initializer_list<Axis> out = {{b, p->out_stride_batch}, {n, p->out_stride_seq}, {h, p->out_stride_head}};
  p->out_aligned = aligned(p->out, p->head_dim_v, 4 * item, out);
  p->out_aligned_16 = aligned(p->out, p->head_dim_v, kPieceBytes, out);
}

}  // namespace

AttentionProblem make_problem(const AttentionParams& params) {
  AttentionProblem p = common_batched(params);
  const int64_t b = params.batch_size, n = params.seqlen_q, n_k = params.seqlen_k;
  p.k = params.k;
  p.v = params.v;
  p.k_stride_batch = params.k_stride_batch;
  p.v_stride_batch = params.v_stride_batch;
  p.max_len_q = n, p.max_len_k = n_k, p.total_q = product(b, n);
  set_aligned(&p, b, n, b, n_k);
  return p;
}

AttentionProblem make_problem(const VarlenAttentionParams& params) {
  AttentionProblem p = common(params);
  const int64_t n = params.total_q, n_k = params.total_k;
  p.k = params.k;
  p.v = params.v;
  p.q_stride_seq = params.q_stride_token, p.q_stride_head = params.q_stride_head;
  p.k_stride_seq = params.k_stride_token, p.k_stride_head = params.k_stride_head;
  p.v_stride_seq = params.v_stride_token, p.v_stride_head = params.v_stride_head;
  p.out_stride_seq = params.out_stride_token, p.out_stride_head = params.out_stride_head;
  p.lse_stride_head = params.lse_stride_head;
  p.ragged_q = p.ragged_k = true;
  p.max_len_q = n, p.max_len_k = n_k, p.total_q = n;
  p.cu_seqlens_q = params.cu_seqlens_q;
  p.cu_seqlens_k = params.cu_seqlens_k;
  set_aligned(&p, 1, n, 1, n_k);
  return p;
}

AttentionProblem make_problem(const PagedAttentionParams& params) {
  AttentionProblem p = common_batched(params);
  const bool ragged = params.cu_seqlens_q.data != nullptr || params.total_q > 0;
  const int64_t b = ragged ? 1 : params.batch_size, n = ragged ? params.total_q : params.seqlen_q;
  p.k = params.k_cache;
  p.v = params.v_cache;
  p.k_stride_batch = params.k_stride_page;
  p.v_stride_batch = params.v_stride_page;
  p.paged = true;
  p.ragged_q = ragged;
  p.max_len_q = n, p.total_q = product(b, n);
  p.max_len_k = params.num_pages == 0 ? 0 : product(params.max_pages, params.page_size);  // no page: no key
  p.cu_seqlens_q = params.cu_seqlens_q;
  p.page_table = params.page_table;
  p.page_table_stride_batch = params.page_table_stride_batch;
  p.num_pages = params.num_pages;
  p.page_size = FastDiv(std::max<int64_t>(params.page_size, 1));
  set_aligned(&p, b, n, params.num_pages, params.page_size);
  return p;
}

}  // namespace dlattn::cuda
