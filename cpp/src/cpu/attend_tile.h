// attend_tile -- many rows against packed keys and values: two register-blocked matrix products with the softmax between them.
//   work     all rows of the block against kTileKeys keys at a time; K and V are packed once per key block and serve all rows
//   tile     kTileRows x 2 vectors: AVX-512 12 x 32 (24 accumulators), AVX2 6 x 16 (12), baseline 4 x 8 (8)
//   packed   K transposed in panels [panel][head_dim][2 vectors of keys], V in panels [panel][keys][2 vectors of columns]
//   caches   per 12 rows: scores 6 KiB, one panel (AVX2: 8 KiB at head_dim 128), 12 query rows 6 KiB: L1;
//            K and V block 2 x 64 KiB, queries and accumulators of the block: L2
//   padding  rows to 12 with zero queries, keys of the last panel with zeros (their scores are set to -inf), columns to kPanel
#pragma once

#include "cpu/rows.h"
#include "cpu/softmax.h"

namespace dlattn::cpu {
namespace {

constexpr int kPanelWidth = 2 * Simd::kWidth;

// c[kTileRows][2 vectors] = a [kTileRows rows, stride] times b [depth][kPanelWidth].
inline __attribute__((always_inline)) void multiply_tile(const float* a, int64_t a_stride, const float* b, int depth,
                                                         Simd::Reg (&c)[Simd::kTileRows][2]) {
#pragma GCC unroll 16
  for (int r = 0; r < Simd::kTileRows; ++r) c[r][0] = c[r][1] = Simd::zero();
  for (int d = 0; d < depth; ++d) {
    const Simd::Reg b0 = Simd::load(b + d * kPanelWidth), b1 = Simd::load(b + d * kPanelWidth + Simd::kWidth);
#pragma GCC unroll 16
    for (int r = 0; r < Simd::kTileRows; ++r) {
      const Simd::Reg x = Simd::set1(a[r * a_stride + d]);
      c[r][0] = Simd::fma(x, b0, c[r][0]);
      c[r][1] = Simd::fma(x, b1, c[r][1]);
    }
  }
}

// K rows -> panels [head_dim][kPanelWidth], keys past `count` zero.
template <class T>
inline void pack_keys(const T* const* rows, int count, int head_dim, float* packed) {
  for (int key = 0; key < count; key += Simd::kWidth) {
    float* panel = packed + static_cast<int64_t>(key / kPanelWidth) * head_dim * kPanelWidth + key % kPanelWidth;
    const int n = count - key < Simd::kWidth ? count - key : Simd::kWidth;
    int d = 0;
    for (; d + Simd::kWidth <= head_dim; d += Simd::kWidth) {
      Simd::Reg block[Simd::kWidth];
      for (int i = 0; i < Simd::kWidth; ++i) block[i] = i < n ? Simd::load(rows[key + i] + d) : Simd::zero();
      Simd::store_transposed(block, panel + d * kPanelWidth, kPanelWidth);
    }
    for (; d < head_dim; ++d) {
      for (int i = 0; i < Simd::kWidth; ++i) panel[d * kPanelWidth + i] = i < n ? to_float(rows[key + i][d]) : 0.0f;
    }
  }
  if ((count - 1) % kPanelWidth < Simd::kWidth) {  // the second vector of the last panel is empty
    float* panel = packed + static_cast<int64_t>((count - 1) / kPanelWidth) * head_dim * kPanelWidth + Simd::kWidth;
    for (int d = 0; d < head_dim; ++d) Simd::store(panel + d * kPanelWidth, Simd::zero());
  }
}

// V rows -> panels [count][kPanelWidth], columns past head_dim_v zero. Returns whether all values are finite.
template <class T>
inline bool pack_values(const T* const* rows, int count, int head_dim_v, float* packed) {
  Simd::Reg probe = Simd::zero();  // x * 0 is NaN for an infinity or a NaN
  for (int column = 0; column < head_dim_v; column += kPanelWidth) {
    float* panel = packed + static_cast<int64_t>(column / kPanelWidth) * count * kPanelWidth;
    for (int half = 0; half < 2; ++half) {
      const int from = column + half * Simd::kWidth;
      const int n = head_dim_v - from;
      for (int key = 0; key < count; ++key) {
        const Simd::Reg x = n >= Simd::kWidth ? Simd::load(rows[key] + from)
                            : n > 0           ? load_partial(rows[key] + from, n)
                                              : Simd::zero();
        Simd::store(panel + key * kPanelWidth + half * Simd::kWidth, x);
        probe = Simd::fma(x, Simd::zero(), probe);
      }
    }
  }
  return Simd::sum(probe) == 0.0f;
}

// Keys and values of one block, packed; `stride` keys from `key` on.
template <class T>
struct PackedBlock {
  int64_t key = 0;
  int stride = 0;
  const float* k = nullptr;
  const float* v = nullptr;
  bool finite = true;  // all of V
  const T* const* v_rows = nullptr;
};

// kMaxTileRows rows against the keys [from, from + count) of a packed block; `from` is a multiple of kPanelWidth.
template <class T>
inline void attend_rows(const RowBlock& block, int first, const PackedBlock<T>& packed, int from, int count,
                        float* scores) {
  const bool finite = packed.finite;
  const int rows = block.num_rows - first < kMaxTileRows ? block.num_rows - first : kMaxTileRows;
  const int q_stride = padded(block.head_dim), acc_stride = padded(block.head_dim_v);
  const int padded_count = (count + kPanelWidth - 1) / kPanelWidth * kPanelWidth;
  const float* query = block.query + static_cast<int64_t>(first) * q_stride;
  Simd::Reg c[Simd::kTileRows][2];
  for (int key = 0; key < count; key += kPanelWidth) {
    const float* panel = packed.k + static_cast<int64_t>(from + key) * block.head_dim;
    for (int r = 0; r < rows; r += Simd::kTileRows) {
      multiply_tile(query + r * q_stride, q_stride, panel, block.head_dim, c);
      for (int i = 0; i < Simd::kTileRows; ++i) {
        Simd::store(scores + (r + i) * kScoreStride + key, c[i][0]);
        Simd::store(scores + (r + i) * kScoreStride + key + Simd::kWidth, c[i][1]);
      }
    }
  }

  float factor[kMaxTileRows];
  uint8_t visible[kTileKeys];
  for (int r = 0; r < kMaxTileRows; ++r) {
    float* row_scores = scores + r * kScoreStride;
    const int row = first + r;
    if (r >= rows) {
      factor[r] = 1.0f;
      for (int j = 0; j < count; ++j) row_scores[j] = 0.0f;
      continue;
    }
    const float block_max = finish_scores(block, row, packed.key + from, count, padded_count, row_scores);
    const Rescale step = rescale(block.row_max[row], block_max);
    block.row_max[row] = step.row_max;
    factor[r] = step.factor;
    if (!finite) {
      for (int j = 0; j < count; ++j) visible[j] = row_scores[j] != -kInfinity;
    }
    block.row_sum[row] = block.row_sum[row] * step.factor + exponentiate(row_scores, padded_count, step.subtract);
    if (!finite) {
      float* acc = block.acc + static_cast<int64_t>(row) * acc_stride;
      for (int d = 0; d < block.head_dim_v; ++d) acc[d] *= step.factor;
      accumulate_selected(row_scores, visible, packed.v_rows + from, count, block.head_dim_v, acc);
    }
  }
  if (!finite) return;

  for (int column = 0; column < block.head_dim_v; column += kPanelWidth) {
    const float* panel =
        packed.v + static_cast<int64_t>(column) * packed.stride + static_cast<int64_t>(from) * kPanelWidth;
    for (int r = 0; r < rows; r += Simd::kTileRows) {
      multiply_tile(scores + r * kScoreStride, kScoreStride, panel, count, c);
      for (int i = 0; i < Simd::kTileRows; ++i) {
        float* acc = block.acc + static_cast<int64_t>(first + r + i) * acc_stride + column;
        const Simd::Reg f = Simd::set1(factor[r + i]);
        Simd::store(acc, Simd::fma(Simd::load(acc), f, c[i][0]));
        Simd::store(acc + Simd::kWidth, Simd::fma(Simd::load(acc + Simd::kWidth), f, c[i][1]));
      }
    }
  }
}

template <class T>
void attend_tile(const RowBlock& block, int64_t begin, int64_t end) {
  float* packed_k = block.scratch;
  float* packed_v = packed_k + static_cast<int64_t>(kTileKeys) * padded(block.head_dim);
  float* scores = packed_v + static_cast<int64_t>(kTileKeys) * padded(block.head_dim_v);
  const T* k_rows[kTileKeys];
  const T* v_rows[kTileKeys];
  for (int64_t key = begin; key < end; key += kTileKeys) {
    const int count = static_cast<int>(end - key < kTileKeys ? end - key : kTileKeys);
    find_rows(block.keys, key, key + count, k_rows, v_rows);
    pack_keys(k_rows, count, block.head_dim, packed_k);
    const bool finite = pack_values(v_rows, count, block.head_dim_v, packed_v);
    const PackedBlock<T> packed{key, count, packed_k, packed_v, finite, v_rows};
    for (int row = 0; row < block.num_rows; row += kMaxTileRows) {
      const int last = row + kMaxTileRows < block.num_rows ? row + kMaxTileRows - 1 : block.num_rows - 1;
      const int64_t from = block.rule.key_begin(block.query_of(row)) - key,
                    to = block.rule.key_end(block.query_of(last)) - key;
      const int first_key = from <= 0 ? 0 : from < count ? static_cast<int>(from) / kPanelWidth * kPanelWidth : count;
      const int last_key = to < count ? static_cast<int>(to) : count;
      if (first_key < last_key) attend_rows(block, row, packed, first_key, last_key - first_key, scores);
    }
  }
}

}  // namespace
}  // namespace dlattn::cpu
