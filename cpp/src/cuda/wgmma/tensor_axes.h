// What TMA can express of a tensor [batch, seq, head, dim] whose last stride is 1. Pure: no CUDA calls.
#pragma once

#include <cstdint>

#include "cuda/problem.h"
#include "element.h"

namespace dlattn::cuda {

struct TensorMapAxis {
  int64_t size, stride;  // in elements
};

struct TensorMapAxes {
  TensorMapAxis seq, head, batch;
};

constexpr int64_t kMaxTensorMapSize = INT32_MAX;           // coordinates are signed 32-bit numbers
constexpr int64_t kTensorMapPiece = 16;                    // bytes: the base and all strides are multiples
constexpr int64_t kTensorMapStrideEnd = INT64_C(1) << 40;  // bytes: strides are less
constexpr int64_t kTensorMapBoxColumns = 64;               // 16-bit elements: the 128 bytes of the widest swizzle

inline bool tensor_map_size_fits(int64_t size) { return size >= 1 && size <= kMaxTensorMapSize; }

// The stride of an axis of size 1 does not count.
inline bool tensor_map_stride_fits(DType dtype, TensorMapAxis axis) {
  const int64_t item = size_of(dtype);
  return axis.size <= 1 ||
         (axis.stride >= 0 && axis.stride < kTensorMapStrideEnd / item && axis.stride * item % kTensorMapPiece == 0);
}

// Whether tensor_map() can encode it. A null base counts as aligned: it comes later.
inline bool tensor_map_fits(DType dtype, const void* base, int64_t head_dim, const TensorMapAxes& axes) {
  if (reinterpret_cast<uintptr_t>(base) % kTensorMapPiece != 0 || !tensor_map_size_fits(head_dim)) return false;
  for (const TensorMapAxis& axis : {axes.seq, axes.head, axes.batch}) {
    if (!tensor_map_size_fits(axis.size) || !tensor_map_stride_fits(dtype, axis)) return false;
  }
  return true;
}

// The axes of a problem's tensors. Ragged: all tokens are one sequence. Pages of k and v are the batch axis.
inline TensorMapAxes q_axes(const AttentionProblem& p) {
  return {{p.ragged_q ? p.total_q : p.max_len_q, p.q_stride_seq},
          {p.num_heads, p.q_stride_head},
          {p.ragged_q ? 1 : p.batch_size, p.q_stride_batch}};
}

inline TensorMapAxes out_axes(const AttentionProblem& p) {
  const TensorMapAxes q = q_axes(p);
  return {{q.seq.size, p.out_stride_seq}, {q.head.size, p.out_stride_head}, {q.batch.size, p.out_stride_batch}};
}

inline TensorMapAxes k_axes(const AttentionProblem& p) {
  return {{p.paged ? p.page_size.divisor : p.max_len_k, p.k_stride_seq},
          {p.num_kv_heads, p.k_stride_head},
          {p.paged      ? p.num_pages
           : p.ragged_k ? 1
                        : p.batch_size,
           p.k_stride_batch}};
}

inline TensorMapAxes v_axes(const AttentionProblem& p) {
  const TensorMapAxes k = k_axes(p);
  return {{k.seq.size, p.v_stride_seq}, {k.head.size, p.v_stride_head}, {k.batch.size, p.v_stride_batch}};
}

}  // namespace dlattn::cuda
