// Scores to probabilities: options, visibility, online softmax. Shared by both attention kernels, compiled once per instruction set.
#pragma once

#include <math.h>

#include <limits>

#include "cpu/kernels.h"

namespace dlattn::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// 2^x for x <= 0; 0 below 2^-126; NaN stays NaN. Minimax polynomial on [-1/2, 1/2], relative error 2e-9 before rounding.
inline Simd::Reg exp2(Simd::Reg x) {
  x = Simd::max(Simd::set1(-150.0f), x);  // keeps the whole number in range; a NaN passes
  const Simd::Reg n = Simd::round(x);
  const Simd::Reg f = x - n;
  Simd::Reg p = Simd::fma(Simd::set1(0.000153458117f), f, Simd::set1(0.00133999312f));
  p = Simd::fma(p, f, Simd::set1(0.00961848896f));
  p = Simd::fma(p, f, Simd::set1(0.0555032878f));
  p = Simd::fma(p, f, Simd::set1(0.240226469f));
  p = Simd::fma(p, f, Simd::set1(0.693147206f));
  p = Simd::fma(p, f, Simd::set1(1.0f));
  return Simd::scale_by_exp2(p, n);
}

// tanh: an odd minimax polynomial below 0.6 (relative error 2e-9 before rounding), 1 - 2 / (e^2x + 1) above.
inline Simd::Reg tanh(Simd::Reg x) {
  const Simd::Reg z = x * x;
  Simd::Reg p = Simd::fma(Simd::set1(-0.00585217111f), z, Simd::set1(0.0207536313f));
  p = Simd::fma(p, z, Simd::set1(-0.0537687056f));
  p = Simd::fma(p, z, Simd::set1(0.13331689f));
  p = Simd::fma(p, z, Simd::set1(-0.333332833f));
  const Simd::Reg small = Simd::fma(p * z, x, x);
  const Simd::Reg magnitude = Simd::abs(x);
  const Simd::Reg e = exp2(magnitude * Simd::set1(-2.0f * kLog2E));  // e^-2|x|: tanh |x| = (1 - e) / (1 + e)
  const Simd::Reg one = Simd::set1(1.0f);
  const Simd::Reg large = Simd::div(one - e, one + e);
  const Simd::Reg signed_large = Simd::select_less(x, Simd::zero(), Simd::zero() - large, large);
  return Simd::select_less(magnitude, Simd::set1(0.6f), small, signed_large);
}

inline float mask_value(const ScoreRule& rule, int64_t index) {
  switch (rule.mask_dtype) {
    case DType::kFloat32:
      return static_cast<const float*>(rule.mask)[index];
    case DType::kFloat16:
      return to_float(static_cast<const Float16*>(rule.mask)[index]);
    case DType::kBFloat16:
      return to_float(static_cast<const BFloat16*>(rule.mask)[index]);
    default:
      return static_cast<const uint8_t*>(rule.mask)[index] != 0 ? 0.0f : -kInfinity;
  }
}

// Softcap, ALiBi and mask of one row: scores[0 .. n) are those of keys begin .. begin + n; n is a multiple of the width.
inline void apply_options(const ScoreRule& rule, int64_t query, int64_t head, int64_t begin, int first, int last,
                          float* scores) {
  if (rule.softcap > 0.0f) {
    const Simd::Reg cap = Simd::set1(rule.softcap);
    for (int j = first / Simd::kWidth * Simd::kWidth; j < last; j += Simd::kWidth) {
      Simd::store(scores + j, cap * tanh(Simd::div(Simd::load(scores + j), cap)));
    }
  }
  if (rule.alibi != nullptr) {
    const float slope = rule.alibi[head];
    for (int j = first; j < last; ++j) {
      const int64_t distance = query + rule.offset - (begin + j);
      scores[j] -= slope * static_cast<float>(distance < 0 ? -distance : distance);
    }
  }
  if (rule.mask != nullptr) {
    const int64_t base = head * rule.mask_stride_head + query * rule.mask_stride_q + begin * rule.mask_stride_k;
    if (rule.mask_dtype == DType::kBool) {
      const auto* keep = static_cast<const uint8_t*>(rule.mask) + base;
      for (int j = first; j < last; ++j) {
        if (keep[j * rule.mask_stride_k] == 0) scores[j] = -kInfinity;
      }
    } else {
      for (int j = first; j < last; ++j) {
        const float value = mask_value(rule, base + j * rule.mask_stride_k);
        scores[j] = value == -kInfinity ? -kInfinity : scores[j] + value;  // -inf hides a NaN or +inf score, too
      }
    }
  }
}

// Hide what the row may not see, add the options, and return the row's largest score; -inf if nothing is visible.
// scores[0 .. count) belong to keys begin .. begin + count; [count, padded_count) is filled with -inf.
inline float finish_scores(const RowBlock& block, int row, int64_t begin, int count, int padded_count, float* scores) {
  const ScoreRule& rule = block.rule;
  const int64_t query = block.query_of(row);
  const int64_t visible_begin = rule.key_begin(query) - begin, visible_end = rule.key_end(query) - begin;
  const int first = visible_begin <= 0 ? 0 : visible_begin < count ? static_cast<int>(visible_begin) : count;
  const int last = visible_end >= count ? count : visible_end > first ? static_cast<int>(visible_end) : first;
  if (!rule.positional_only()) apply_options(rule, query, block.head_of(row), begin, first, last, scores);
  for (int j = 0; j < first; ++j) scores[j] = -kInfinity;
  for (int j = last; j < padded_count; ++j) scores[j] = -kInfinity;
  Simd::Reg largest = Simd::set1(-kInfinity);
  for (int j = 0; j < padded_count; j += Simd::kWidth) largest = Simd::max(Simd::load(scores + j), largest);
  return Simd::max_of(largest);
}

// One row's step of the online softmax: the new maximum, and by what the old sum and accumulator are to be multiplied.
struct Rescale {
  float row_max;   // the new one
  float subtract;  // from the scores: row_max, or 0 while nothing is visible
  float factor;    // e^(old maximum - new maximum)
};

inline Rescale rescale(float old_max, float block_max) {
  const float row_max = old_max > block_max ? old_max : block_max;
  if (row_max == -kInfinity) return {row_max, 0.0f, 1.0f};
  if (old_max == row_max) return {row_max, row_max, 1.0f};
  if (old_max == -kInfinity) return {row_max, row_max, 0.0f};
  const float difference = old_max - row_max;
  return {row_max, row_max, difference < -87.0f ? 0.0f : expf(difference)};
}

// scores := e^(scores - subtract); returns their sum. Subtracting first keeps equal huge scores exact: nothing may be fused into
// exp2(s * c - m * c).
inline float exponentiate(float* scores, int padded_count, float subtract) {
  const Simd::Reg minus = Simd::set1(subtract), log2e = Simd::set1(kLog2E);
  Simd::Reg total = Simd::zero();
  for (int j = 0; j < padded_count; j += Simd::kWidth) {
    const Simd::Reg p = exp2((Simd::load(scores + j) - minus) * log2e);
    Simd::store(scores + j, p);
    total = total + p;
  }
  return Simd::sum(total);
}

}  // namespace
}  // namespace dlattn::cpu
