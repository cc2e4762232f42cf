// attend_few -- a few rows against keys and values as they lie in memory: decode, limited by reading the cache once.
//   work     up to kFewKeys keys of one kv head, for all query rows that share them
//   scores   kWidth dot products at a time (1, 2 or 4 rows x 16, 8 or 4 keys for AVX-512), reduced together by a transposing add
//   values   4 rows x 2 vectors (1 row: 4 vectors) of accumulators over the keys
//   16 bit   converted in registers; nothing is packed
#pragma once

#include "cpu/rows.h"
#include "cpu/softmax.h"

namespace dlattn::cpu {
namespace {

// scores[r * kFewKeys + j] for kRows rows and the kWidth / kRows keys from rows[0] on; past `count` the last key's again.
template <int kRows, class T>
inline __attribute__((always_inline)) void dot_products(const float* query, int q_stride, const T* const* rows,
                                                        int count, int head_dim, float* scores) {
  constexpr int kKeys = Simd::kWidth / kRows;
  Simd::Reg acc[Simd::kWidth];
#pragma GCC unroll 16
  for (int i = 0; i < Simd::kWidth; ++i) acc[i] = Simd::zero();
  const T* k[kKeys];
#pragma GCC unroll 16
  for (int j = 0; j < kKeys; ++j) k[j] = rows[j < count ? j : count - 1];
  int d = 0;
  for (; d + Simd::kWidth <= head_dim; d += Simd::kWidth) {
    Simd::Reg x[kRows];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) x[r] = Simd::load(query + r * q_stride + d);
#pragma GCC unroll 16
    for (int j = 0; j < kKeys; ++j) {
      const Simd::Reg y = Simd::load(k[j] + d);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) acc[r * kKeys + j] = Simd::fma(x[r], y, acc[r * kKeys + j]);
    }
  }
  if (d < head_dim) {
#pragma GCC unroll 16
    for (int j = 0; j < kKeys; ++j) {
      const Simd::Reg y = load_partial(k[j] + d, head_dim - d);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        acc[r * kKeys + j] =
            Simd::fma(Simd::load(query + r * q_stride + d), y, acc[r * kKeys + j]);  // zeros behind head_dim
      }
    }
  }
  float sums[Simd::kWidth];
  Simd::store(sums, Simd::sums(acc));
  for (int r = 0; r < kRows; ++r) {
    for (int j = 0; j < kKeys; ++j) scores[r * kFewKeys + j] = sums[r * kKeys + j];
  }
}

// Rows that the next call will read, fetched into the L2 while this one computes.
template <class T>
struct Prefetch {
  const T* k_rows[kFewKeys];
  const T* v_rows[kFewKeys];
  int count = 0;
  int head_dim = 0, head_dim_v = 0;

  explicit Prefetch(const RowBlock& block) : head_dim(block.head_dim), head_dim_v(block.head_dim_v) {
    count = static_cast<int>(block.next_end - block.next_begin);
    find_rows(block.next, block.next_begin, block.next_end, k_rows, v_rows);
  }

  void fetch(int begin, int end) const {
    for (int j = begin; j < end && j < count; ++j) {
      for (int d = 0; d < head_dim; d += kLine) __builtin_prefetch(k_rows[j] + d, 0, 2);
      for (int d = 0; d < head_dim_v; d += kLine) __builtin_prefetch(v_rows[j] + d, 0, 2);
    }
  }

 private:
  static constexpr int kLine = 64 / static_cast<int>(sizeof(T));
};

template <int kRows, class T>
inline void all_scores(const float* query, int q_stride, const T* const* rows, int count, int head_dim,
                       const Prefetch<T>& prefetch, float* scores) {
  constexpr int kKeys = Simd::kWidth / kRows;
  for (int j = 0; j < count; j += kKeys) {
    prefetch.fetch(j, j + kKeys);
    dot_products<kRows>(query, q_stride, rows + j, count - j, head_dim, scores + j);
  }
}

// acc[r][d ..] = acc * factor[r] + sum_j p[r][j] v[j][d ..] for kVectors vectors of columns; `columns` < all of them: a ragged end.
template <int kRows, int kVectors, class T>
inline __attribute__((always_inline)) void accumulate_columns(const float* p, const float* factor, const T* const* rows,
                                                              int count, int d, int columns, float* acc,
                                                              int acc_stride) {
  Simd::Reg sum[kRows][kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int i = 0; i < kVectors; ++i) {
      sum[r][i] = Simd::load(acc + r * acc_stride + d + i * Simd::kWidth) * Simd::set1(factor[r]);
    }
  }
  for (int j = 0; j < count; ++j) {
    Simd::Reg v[kVectors];
#pragma GCC unroll 16
    for (int i = 0; i < kVectors; ++i) {
      v[i] = columns == kVectors * Simd::kWidth ? Simd::load(rows[j] + d + i * Simd::kWidth)
                                                : load_partial(rows[j] + d, columns);
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const Simd::Reg weight = Simd::set1(p[r * kFewKeys + j]);
#pragma GCC unroll 16
      for (int i = 0; i < kVectors; ++i) sum[r][i] = Simd::fma(weight, v[i], sum[r][i]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int i = 0; i < kVectors; ++i) Simd::store(acc + r * acc_stride + d + i * Simd::kWidth, sum[r][i]);
  }
}

template <int kRows, class T>
inline void accumulate(const float* p, const float* factor, const T* const* rows, int count, int head_dim_v, float* acc,
                       int acc_stride) {
  constexpr int kVectors = kRows == 4 ? 2 : 4;
  constexpr int kStep = kVectors * Simd::kWidth;
  int d = 0;
  for (; d + kStep <= head_dim_v; d += kStep) {
    accumulate_columns<kRows, kVectors>(p, factor, rows, count, d, kStep, acc, acc_stride);
  }
  for (; d < head_dim_v; d += Simd::kWidth) {
    const int columns = head_dim_v - d < Simd::kWidth ? head_dim_v - d : Simd::kWidth;
    accumulate_columns<kRows, 1>(p, factor, rows, count, d, columns, acc, acc_stride);
  }
}

template <class T>
inline bool all_finite(const T* const* rows, int count, int n) {
  Simd::Reg probe = Simd::zero();
  for (int j = 0; j < count; ++j) {
    int d = 0;
    for (; d + Simd::kWidth <= n; d += Simd::kWidth) probe = Simd::fma(Simd::load(rows[j] + d), Simd::zero(), probe);
    if (d < n) probe = Simd::fma(load_partial(rows[j] + d, n - d), Simd::zero(), probe);
  }
  return Simd::sum(probe) == 0.0f;
}

// kRows rows from `first` on against `count` keys from `begin` on.
template <int kRows, class T>
inline void attend_row_group(const RowBlock& block, int first, int64_t begin, int count, const T* const* k_rows,
                             const T* const* v_rows, const Prefetch<T>& prefetch) {
  const int q_stride = padded(block.head_dim), acc_stride = padded(block.head_dim_v);
  float scores[kRows * kFewKeys];
  all_scores<kRows>(block.query + static_cast<int64_t>(first) * q_stride, q_stride, k_rows, count, block.head_dim,
                    prefetch, scores);
  float factor[kRows];
  uint8_t visible[kRows][kFewKeys];
  bool some_hidden = false;
  for (int r = 0; r < kRows; ++r) {
    float* row_scores = scores + r * kFewKeys;
    const int row = first + r;
    const int padded_count = (count + Simd::kWidth - 1) / Simd::kWidth * Simd::kWidth;
    const float block_max = finish_scores(block, row, begin, count, padded_count, row_scores);
    for (int j = 0; j < count; ++j) {
      visible[r][j] = row_scores[j] != -kInfinity;
      some_hidden |= !visible[r][j];
    }
    const Rescale step = rescale(block.row_max[row], block_max);
    block.row_max[row] = step.row_max;
    factor[r] = step.factor;
    block.row_sum[row] = block.row_sum[row] * step.factor + exponentiate(row_scores, padded_count, step.subtract);
  }
  float* acc = block.acc + static_cast<int64_t>(first) * acc_stride;
  if (some_hidden && !all_finite(v_rows, count, block.head_dim_v)) {
    for (int r = 0; r < kRows; ++r) {
      float* row_acc = acc + r * acc_stride;
      for (int d = 0; d < block.head_dim_v; ++d) row_acc[d] *= factor[r];
      accumulate_selected(scores + r * kFewKeys, visible[r], v_rows, count, block.head_dim_v, row_acc);
    }
    return;
  }
  accumulate<kRows>(scores, factor, v_rows, count, block.head_dim_v, acc, acc_stride);
}

template <class T>
void attend_few(const RowBlock& block, int64_t begin, int64_t end) {
  const int count = static_cast<int>(end - begin);
  const T* k_rows[kFewKeys];
  const T* v_rows[kFewKeys];
  find_rows(block.keys, begin, end, k_rows, v_rows);
  Prefetch<T> prefetch(block);
  for (int row = 0; row < block.num_rows;) {
    const int left = block.num_rows - row;
    if (left >= 4) {
      attend_row_group<4>(block, row, begin, count, k_rows, v_rows, prefetch);
      row += 4;
    } else if (left >= 2) {
      attend_row_group<2>(block, row, begin, count, k_rows, v_rows, prefetch);
      row += 2;
    } else {
      attend_row_group<1>(block, row, begin, count, k_rows, v_rows, prefetch);
      row += 1;
    }
    prefetch.count = 0;  // once
  }
}

}  // namespace
}  // namespace dlattn::cpu
