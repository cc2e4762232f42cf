#include "cuda/problem.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "element.h"

namespace dlattn::cuda {
namespace {

struct Axis {
  int64_t size, stride;
};

// Every row of the tensor starts at a multiple of `bytes`, and `dim` elements are a multiple of it. Axes of size 1 do not count.
bool rows_aligned(const void* data, int64_t dim, DType dtype, int64_t bytes, std::initializer_list<Axis> axes) {
  const int64_t items = bytes / size_of(dtype);
  bool aligned = reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(bytes) == 0 && dim % items == 0;
  for (const Axis& axis : axes) aligned = aligned && (axis.size <= 1 || axis.stride % items == 0);
  return aligned;
}

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

}  // namespace

AttentionProblem make_problem(const AttentionParams& params) {
  AttentionProblem p = common(params);
  const int64_t b = params.batch_size, h = params.num_heads, h_kv = params.num_kv_heads;
  const int64_t n = params.seqlen_q, n_k = params.seqlen_k;
  p.k = params.k;
  p.v = params.v;
  p.q_stride_batch = params.q_stride_batch, p.q_stride_seq = params.q_stride_seq;
  p.q_stride_head = params.q_stride_head;
  p.k_stride_batch = params.k_stride_batch, p.k_stride_seq = params.k_stride_seq;
  p.k_stride_head = params.k_stride_head;
  p.v_stride_batch = params.v_stride_batch, p.v_stride_seq = params.v_stride_seq;
  p.v_stride_head = params.v_stride_head;
  p.out_stride_batch = params.out_stride_batch, p.out_stride_seq = params.out_stride_seq;
  p.out_stride_head = params.out_stride_head;
  p.lse_stride_batch = params.lse_stride_batch, p.lse_stride_head = params.lse_stride_head;
  p.max_len_q = n, p.max_len_k = n_k, p.total_q = product(b, n);
  p.seqlens_k = params.seqlens_k;
  p.q_aligned =
      rows_aligned(p.q, p.head_dim, p.dtype, 16, {{b, p.q_stride_batch}, {n, p.q_stride_seq}, {h, p.q_stride_head}});
  p.k_aligned = rows_aligned(p.k, p.head_dim, p.dtype, 16,
                             {{b, p.k_stride_batch}, {n_k, p.k_stride_seq}, {h_kv, p.k_stride_head}});
  p.v_aligned = rows_aligned(p.v, p.head_dim_v, p.dtype, 16,
                             {{b, p.v_stride_batch}, {n_k, p.v_stride_seq}, {h_kv, p.v_stride_head}});
  p.out_aligned = rows_aligned(p.out, p.head_dim_v, p.dtype, 4 * size_of(p.dtype),
                               {{b, p.out_stride_batch}, {n, p.out_stride_seq}, {h, p.out_stride_head}});
  return p;
}

AttentionProblem make_problem(const VarlenAttentionParams& params) {
  AttentionProblem p = common(params);
  const int64_t h = params.num_heads, h_kv = params.num_kv_heads, n = params.total_q, n_k = params.total_k;
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
  p.q_aligned = rows_aligned(p.q, p.head_dim, p.dtype, 16, {{n, p.q_stride_seq}, {h, p.q_stride_head}});
  p.k_aligned = rows_aligned(p.k, p.head_dim, p.dtype, 16, {{n_k, p.k_stride_seq}, {h_kv, p.k_stride_head}});
  p.v_aligned = rows_aligned(p.v, p.head_dim_v, p.dtype, 16, {{n_k, p.v_stride_seq}, {h_kv, p.v_stride_head}});
  p.out_aligned =
      rows_aligned(p.out, p.head_dim_v, p.dtype, 4 * size_of(p.dtype), {{n, p.out_stride_seq}, {h, p.out_stride_head}});
  return p;
}

AttentionProblem make_problem(const PagedAttentionParams& params) {
  AttentionProblem p = common(params);
  const bool ragged = params.cu_seqlens_q.data != nullptr || params.total_q > 0;
  const int64_t h = params.num_heads, h_kv = params.num_kv_heads;
  const int64_t b = ragged ? 1 : params.batch_size, n = ragged ? params.total_q : params.seqlen_q;
  p.k = params.k_cache;
  p.v = params.v_cache;
  p.q_stride_batch = params.q_stride_batch, p.q_stride_seq = params.q_stride_seq;
  p.q_stride_head = params.q_stride_head;
  p.k_stride_batch = params.k_stride_page, p.k_stride_seq = params.k_stride_seq;
  p.k_stride_head = params.k_stride_head;
  p.v_stride_batch = params.v_stride_page, p.v_stride_seq = params.v_stride_seq;
  p.v_stride_head = params.v_stride_head;
  p.out_stride_batch = params.out_stride_batch, p.out_stride_seq = params.out_stride_seq;
  p.out_stride_head = params.out_stride_head;
  p.lse_stride_batch = params.lse_stride_batch, p.lse_stride_head = params.lse_stride_head;
  p.paged = true;
  p.ragged_q = ragged;
  p.max_len_q = n, p.total_q = product(b, n);
  p.max_len_k = params.num_pages == 0 ? 0 : product(params.max_pages, params.page_size);  // no page: no key
  p.cu_seqlens_q = params.cu_seqlens_q;
  p.seqlens_k = params.seqlens_k;
  p.page_table = params.page_table;
  p.page_table_stride_batch = params.page_table_stride_batch;
  p.num_pages = params.num_pages;
  p.page_size = FastDiv(std::max<int64_t>(params.page_size, 1));
  const int64_t pages = params.num_pages, rows = params.page_size;
  p.q_aligned =
      rows_aligned(p.q, p.head_dim, p.dtype, 16, {{b, p.q_stride_batch}, {n, p.q_stride_seq}, {h, p.q_stride_head}});
  p.k_aligned = rows_aligned(p.k, p.head_dim, p.dtype, 16,
                             {{pages, p.k_stride_batch}, {rows, p.k_stride_seq}, {h_kv, p.k_stride_head}});
  p.v_aligned = rows_aligned(p.v, p.head_dim_v, p.dtype, 16,
                             {{pages, p.v_stride_batch}, {rows, p.v_stride_seq}, {h_kv, p.v_stride_head}});
  p.out_aligned = rows_aligned(p.out, p.head_dim_v, p.dtype, 4 * size_of(p.dtype),
                               {{b, p.out_stride_batch}, {n, p.out_stride_seq}, {h, p.out_stride_head}});
  return p;
}

}  // namespace dlattn::cuda
