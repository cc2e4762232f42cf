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

// Decodes the keys and values once; then any row.
class Reference {
 public:
  explicit Reference(const Sequence& sequence) : s_(sequence) {
    for (int64_t h = 0; h < s_.num_kv_heads; ++h) {
      for (int64_t j = 0; j < s_.len_k; ++j) {
        for (int64_t d = 0; d < s_.head_dim; ++d) k_.push_back(s_.k(j, h, d));
        for (int64_t d = 0; d < s_.head_dim_v; ++d) v_.push_back(s_.v(j, h, d));
      }
    }
  }

  Row row(int64_t i, int64_t head) const {
    const double infinity = std::numeric_limits<double>::infinity();
    const int64_t kv_head = head / (s_.num_heads / s_.num_kv_heads);
    const int64_t diagonal = i + s_.len_k - s_.len_q;  // the key that stands where query i stands
    std::vector<double> q, scores(static_cast<size_t>(s_.len_k), -infinity);
    for (int64_t d = 0; d < s_.head_dim; ++d) q.push_back(s_.q(i, head, d));
    double top = s_.sink ? s_.sink(head) : -infinity;
    for (int64_t j = 0; j < s_.len_k; ++j) {
      if (s_.is_causal && j > diagonal) continue;
      if (s_.window_left >= 0 && j < diagonal - s_.window_left) continue;
      if (s_.window_right >= 0 && j > diagonal + s_.window_right) continue;
      const double bias = s_.bias ? s_.bias(head, i, j) : 0.0;
      if (bias == -infinity) continue;
      const double* k = k_.data() + (kv_head * s_.len_k + j) * s_.head_dim;
      double score = 0.0;
      for (int64_t d = 0; d < s_.head_dim; ++d) score += q[static_cast<size_t>(d)] * k[d];
      score *= s_.scale;
      if (s_.softcap > 0.0) score = s_.softcap * std::tanh(score / s_.softcap);
      if (s_.slope) score -= s_.slope(head) * static_cast<double>(std::llabs(diagonal - j));
      score += bias;
      scores[static_cast<size_t>(j)] = score;
      top = std::fmax(top, score);
    }
    Row row{std::vector<double>(static_cast<size_t>(s_.head_dim_v), 0.0), -infinity};
    if (top == -infinity) return row;
    double sum = s_.sink ? std::exp(s_.sink(head) - top) : 0.0;
    for (int64_t j = 0; j < s_.len_k; ++j) {
      const double weight = std::exp(scores[static_cast<size_t>(j)] - top);
      if (weight == 0.0) continue;
      sum += weight;
      const double* v = v_.data() + (kv_head * s_.len_k + j) * s_.head_dim_v;
      for (int64_t d = 0; d < s_.head_dim_v; ++d) row.out[static_cast<size_t>(d)] += weight * v[d];
    }
    for (double& x : row.out) x /= sum;
    row.lse = top + std::log(sum);
    return row;
  }

 private:
  const Sequence& s_;
  std::vector<double> k_, v_;  // [kv_head, j, d]
};

}  // namespace dlattn::test
