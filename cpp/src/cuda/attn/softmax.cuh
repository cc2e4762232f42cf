// Scores to probabilities: options, online softmax (Milakov & Gimelshein, arXiv:1805.02867), the last step of a row.
//   row_max   m, the largest score so far; -inf: none yet
//   row_sum   sum of e^(s - m)
#pragma once

#include <cmath>

#include "cuda/attn/convert.cuh"
#include "cuda/attn/sequence.h"
#include "cuda/ptx/math.cuh"

namespace dlattn::cuda {

constexpr float kLog2E = 1.44269504088896341f, kLn2 = 0.693147180559945309f;

// e^x. Subtracting before this keeps equal huge scores exact: nothing may be fused into exp2(s c - m c).
__device__ __forceinline__ float exp_of(float x) { return ptx::ex2_approx_ftz(x * kLog2E); }

// Softcap, ALiBi and mask of one score, in this order. What lies outside the mask's own shape is hidden.
__device__ __forceinline__ float apply_score_options(const AttentionProblem& p, const Sequence& sequence, int64_t head,
                                                     int64_t query, int64_t key, float score) {
  if (p.softcap > 0.0f) score = p.softcap * tanhf(score / p.softcap);
  if (p.alibi_slopes.data != nullptr) {
    const int64_t distance = query + sequence.offset - key;
    const float slope =
        load_float(p.alibi_slopes.data, p.alibi_slopes.dtype, sequence.batch * p.alibi_stride_batch + head);
    score -= slope * static_cast<float>(distance < 0 ? -distance : distance);
  }
  if (p.mask.data != nullptr) {
    if (query >= p.mask.seqlen_q || key >= p.mask.seqlen_k) return -INFINITY;
    const int64_t at = (p.mask.batch_size > 1 ? sequence.batch * p.mask.stride_batch : 0) +
                       (p.mask.num_heads > 1 ? head * p.mask.stride_head : 0) + query * p.mask.stride_seq_q +
                       key * p.mask.stride_seq_k;
    if (p.mask.dtype == DType::kBool) return static_cast<const uint8_t*>(p.mask.data)[at] != 0 ? score : -INFINITY;
    const float bias = load_float(p.mask.data, p.mask.dtype, at);
    return bias == -INFINITY ? -INFINITY : score + bias;  // -inf hides a NaN or +inf score, too
  }
  return score;
}

// One row's step of the online softmax.
struct Rescale {
  float row_max;   // the new one
  float subtract;  // from the scores: row_max, or 0 while nothing is visible
  float factor;    // e^(old maximum - new maximum), of the old sum and accumulators
};

__device__ __forceinline__ Rescale rescale(float old_max, float block_max) {
  Rescale step;
  step.row_max = fmaxf(old_max, block_max);
  step.subtract = step.row_max == -INFINITY ? 0.0f : step.row_max;
  step.factor = old_max == step.row_max ? 1.0f : exp_of(old_max - step.subtract);
  return step;
}

// out = acc * factor / sum, unless the row is empty.
struct RowResult {
  float factor, sum, lse;

  // `sinks`: one more logit for each head, without a value.
  __device__ __forceinline__ RowResult(const FloatArray& sinks, int64_t head, float row_max, float row_sum)
      : factor(1.0f), sum(row_sum) {
    float largest = row_max;
    if (sinks.data != nullptr) {
      const float sink = load_float(sinks.data, sinks.dtype, head);
      largest = sink > row_max ? sink : row_max;
      if (largest != -INFINITY) {
        factor = exp_of(row_max - largest);
        sum = row_sum * factor + exp_of(sink - largest);
      } else if (isnan(sink)) {
        sum = sink;
      }
    }
    lse = sum == 0.0f ? -INFINITY : largest + logf(sum);
  }

  __device__ __forceinline__ float value(float acc) const { return sum == 0.0f ? 0.0f : acc * factor / sum; }
};

}  // namespace dlattn::cuda
