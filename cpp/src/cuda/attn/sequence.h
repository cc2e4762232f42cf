// One sequence of the batch, read from the device's arrays of lengths, and which keys its queries see.
#pragma once

#include "cuda/attn/index.h"
#include "cuda/attn/split_plan.h"
#include "cuda/problem.h"

namespace dlattn::cuda {

struct Sequence {
  int64_t batch = 0;
  int64_t len_q = 0, len_k = 0;
  int64_t offset = 0;  // len_k - len_q: query i stands at key i + offset
  // in elements, of query 0 or key 0 of head 0; paged keys: 0
  int64_t q_base = 0, out_base = 0, lse_base = 0, k_base = 0, v_base = 0;

  DLATTN_HOST_DEVICE Sequence(const AttentionProblem& p, int64_t index) : batch(index) {
    if (p.ragged_q) {
      const int64_t first = bounded_index(p.cu_seqlens_q, index, 0, p.total_q);
      len_q = bounded_index(p.cu_seqlens_q, index + 1, first, p.total_q) - first;
      q_base = first * p.q_stride_seq;
      out_base = first * p.out_stride_seq;
      lse_base = first;
    } else {
      len_q = p.max_len_q;
      q_base = index * p.q_stride_batch;
      out_base = index * p.out_stride_batch;
      lse_base = index * p.lse_stride_batch;
    }
    if (p.ragged_k) {
      const int64_t first = bounded_index(p.cu_seqlens_k, index, 0, p.max_len_k);
      len_k = bounded_index(p.cu_seqlens_k, index + 1, first, p.max_len_k) - first;
      k_base = first * p.k_stride_seq;
      v_base = first * p.v_stride_seq;
    } else {
      len_k = p.seqlens_k.data != nullptr ? bounded_index(p.seqlens_k, index, 0, p.max_len_k) : p.max_len_k;
      if (!p.paged) {
        k_base = index * p.k_stride_batch;
        v_base = index * p.v_stride_batch;
      }
    }
    offset = len_k - len_q;
  }

  DLATTN_HOST_DEVICE int64_t key_begin(const AttentionProblem& p, int64_t query) const {
    const int64_t first = query + offset - p.window_left;
    return first < 0 ? 0 : first;
  }
  DLATTN_HOST_DEVICE int64_t key_end(const AttentionProblem& p, int64_t query) const {
    const int64_t end = query + offset + p.window_right + 1;
    return end < 0 ? 0 : end < len_k ? end : len_k;
  }
  // The keys that some of these queries see. Both bounds grow with the query.
  DLATTN_HOST_DEVICE KeyRange visible_keys(const AttentionProblem& p, int64_t first_query, int64_t last_query) const {
    const int64_t begin = key_begin(p, first_query), end = key_end(p, last_query);
    return {begin, end > begin ? end : begin};
  }
};

// Where a key lies in a paged cache. A page id that is out of range is brought into it.
struct PagedKey {
  int64_t page, row;

  DLATTN_HOST_DEVICE PagedKey(const AttentionProblem& p, int64_t batch, int64_t key) {
    const int64_t index = p.page_size.div(key);
    row = key - index * p.page_size.divisor;
    page = bounded_index(p.page_table, batch * p.page_table_stride_batch + index, 0, p.num_pages - 1);
  }
};

}  // namespace dlattn::cuda
