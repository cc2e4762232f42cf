// Reading and writing rows of any dtype through float32, and finding the rows of a block of keys. Compiled once per instruction set.
#pragma once

#include <cstring>

#include "cpu/softmax.h"

namespace dlattn::cpu {
namespace {

// The first n < kWidth elements, the rest zero. Nothing behind them is read.
template <class T>
inline Simd::Reg load_partial(const T* p, int n) {
  T buffer[Simd::kWidth] = {};
  std::memcpy(buffer, p, static_cast<size_t>(n) * sizeof(T));
  return Simd::load(buffer);
}

template <class T>
inline void load_row(const T* src, float* dst, int64_t n) {
  int64_t i = 0;
  for (; i + Simd::kWidth <= n; i += Simd::kWidth) Simd::store(dst + i, Simd::load(src + i));
  for (; i < n; ++i) dst[i] = to_float(src[i]);
}

template <class T>
inline void store_row(const float* src, T* dst, int64_t n) {
  int64_t i = 0;
  for (; i + Simd::kWidth <= n; i += Simd::kWidth) Simd::store(dst + i, Simd::load(src + i));
  for (; i < n; ++i) from_float(src[i], dst + i);
}

template <class T>
void load_any(const void* src, float* dst, int64_t n) {
  load_row(static_cast<const T*>(src), dst, n);
}

template <class T>
void store_any(const float* src, void* dst, int64_t n) {
  store_row(src, static_cast<T*>(dst), n);
}

// Pointers to the rows of keys begin .. end. One division per page, not per row.
template <class T>
inline void find_rows(const KeyView& keys, int64_t begin, int64_t end, const T** k_rows, const T** v_rows) {
  const T* k = static_cast<const T*>(keys.k);
  const T* v = static_cast<const T*>(keys.v);
  if (keys.pages == nullptr) {
    for (int64_t j = begin; j < end; ++j) {
      *k_rows++ = k + j * keys.k_stride_seq;
      *v_rows++ = v + j * keys.v_stride_seq;
    }
    return;
  }
  for (int64_t j = begin; j < end;) {
    const int64_t entry = j / keys.page_size;
    const int64_t page = keys.pages_int64 ? static_cast<const int64_t*>(keys.pages)[entry]
                                          : static_cast<const int32_t*>(keys.pages)[entry];
    const int64_t stop = (entry + 1) * keys.page_size < end ? (entry + 1) * keys.page_size : end;
    const T* k_row = k + page * keys.k_stride_page + (j - entry * keys.page_size) * keys.k_stride_seq;
    const T* v_row = v + page * keys.v_stride_page + (j - entry * keys.page_size) * keys.v_stride_seq;
    for (; j < stop; ++j, k_row += keys.k_stride_seq, v_row += keys.v_stride_seq) {
      *k_rows++ = k_row;
      *v_rows++ = v_row;
    }
  }
}

// acc[row] += sum over visible keys of p v, key by key: keeps a NaN or infinity in an invisible value out of the row.
template <class T>
inline void accumulate_selected(const float* p, const uint8_t* visible, const T* const* v_rows, int count,
                                int head_dim_v, float* acc) {
  for (int j = 0; j < count; ++j) {
    if (!visible[j]) continue;
    const Simd::Reg weight = Simd::set1(p[j]);
    int d = 0;
    for (; d + Simd::kWidth <= head_dim_v; d += Simd::kWidth) {
      Simd::store(acc + d, Simd::fma(weight, Simd::load(v_rows[j] + d), Simd::load(acc + d)));
    }
    for (; d < head_dim_v; ++d) acc[d] += p[j] * to_float(v_rows[j][d]);
  }
}

template <class T>
void start_rows(const RowBlock& block) {
  const int stride = padded(block.head_dim);
  const int64_t total = block.padded_rows;
  std::memset(block.query, 0, static_cast<size_t>(total * stride) * sizeof(float));
  std::memset(block.acc, 0, static_cast<size_t>(total * padded(block.head_dim_v)) * sizeof(float));
  for (int row = 0; row < block.num_rows; ++row) {
    block.row_max[row] = -kInfinity;
    block.row_sum[row] = 0.0f;
    const int64_t head = block.head_of(row) - block.first_head;
    const T* src =
        static_cast<const T*>(block.q) + block.query_of(row) * block.q_stride_seq + head * block.q_stride_head;
    float* dst = block.query + static_cast<int64_t>(row) * stride;
    load_row(src, dst, block.head_dim);
    const Simd::Reg scale = Simd::set1(block.scale);
    for (int d = 0; d < stride; d += Simd::kWidth) Simd::store(dst + d, Simd::load(dst + d) * scale);
  }
}

}  // namespace
}  // namespace dlattn::cpu
