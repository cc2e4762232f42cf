// Attention of one sequence in double, straight from the definition.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "dlattn/params.h"

namespace dlattn::test {

struct Sequence {
  int64_t len_q = 0, len_k = 0, num_heads = 1, num_kv_heads = 1, head_dim = 1, head_dim_v = 1;
  std::function<double(int64_t i, int64_t head, int64_t d)> q;
  std::function<double(int64_t j, int64_t kv_head, int64_t d)> k, v;
  std::function<double(int64_t head, int64_t i, int64_t j)> bias;  // added; -inf hides; may be empty
  std::function<double(int64_t head)> sink, slope;                 // may be empty
  double scale = 1.0, softcap = 0.0;
  bool is_causal = false;
  int64_t window_left = -1, window_right = -1;
};

struct Row {
  std::vector<double> out;
  double lse;
};

inline Row reference_row(const Sequence& s, int64_t i, int64_t head) {
  const double infinity = std::numeric_limits<double>::infinity();
  const int64_t kv_head = head / (s.num_heads / s.num_kv_heads);
  const int64_t diagonal = i + s.len_k - s.len_q;  // the key that stands where query i stands
  std::vector<double> scores(static_cast<size_t>(s.len_k), -infinity);
  double top = s.sink ? s.sink(head) : -infinity;
  for (int64_t j = 0; j < s.len_k; ++j) {
    if (s.is_causal && j > diagonal) continue;
    if (s.window_left >= 0 && j < diagonal - s.window_left) continue;
    if (s.window_right >= 0 && j > diagonal + s.window_right) continue;
    const double bias = s.bias ? s.bias(head, i, j) : 0.0;
    if (bias == -infinity) continue;
    double score = 0.0;
    for (int64_t d = 0; d < s.head_dim; ++d) score += s.q(i, head, d) * s.k(j, kv_head, d);
    score *= s.scale;
    if (s.softcap > 0.0) score = s.softcap * std::tanh(score / s.softcap);
    if (s.slope) score -= s.slope(head) * static_cast<double>(std::llabs(diagonal - j));
    score += bias;
    scores[static_cast<size_t>(j)] = score;
    top = std::fmax(top, score);
  }
  Row row{std::vector<double>(static_cast<size_t>(s.head_dim_v), 0.0), -infinity};
  if (top == -infinity) return row;
  double sum = s.sink ? std::exp(s.sink(head) - top) : 0.0;
  for (int64_t j = 0; j < s.len_k; ++j) {
    const double weight = std::exp(scores[static_cast<size_t>(j)] - top);
    if (weight == 0.0) continue;
    sum += weight;
    for (int64_t d = 0; d < s.head_dim_v; ++d) row.out[static_cast<size_t>(d)] += weight * s.v(j, kv_head, d);
  }
  for (double& x : row.out) x /= sum;
  row.lse = top + std::log(sum);
  return row;
}

}  // namespace dlattn::test
