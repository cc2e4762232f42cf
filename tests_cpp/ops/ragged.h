// What ragged and paged problems share: options with their arrays, head sizes, and the comparison of packed rows.
#pragma once

#include <cmath>
#include <numeric>
#include <optional>
#include <ostream>
#include <random>
#include <vector>

#include "dlattn/dlattn.h"
#include "support/compare.h"
#include "support/reference.h"
#include "support/tensor.h"

namespace dlattn::test {

enum class RaggedMask { kNone, kBool, kFloat };

struct RaggedOptions {
  bool is_causal = false;
  int64_t window_left = -1, window_right = -1;
  float softcap = 0.0f;
  std::optional<float> scale = std::nullopt;
  bool sinks = false, alibi = false;
  RaggedMask mask = RaggedMask::kNone;
};

struct HeadSizes {
  int64_t num_heads = 6, num_kv_heads = 2, head_dim = 40, head_dim_v = 24;
};

inline std::ostream& operator<<(std::ostream& os, const RaggedOptions& o) {
  if (o.is_causal) os << " causal";
  if (o.window_left >= 0 || o.window_right >= 0) os << " window " << o.window_left << "," << o.window_right;
  if (o.softcap > 0) os << " softcap " << o.softcap;
  if (o.scale) os << " scale " << *o.scale;
  return os << (o.sinks ? " sinks" : "") << (o.alibi ? " alibi" : "")
            << (o.mask == RaggedMask::kBool    ? " mask bool"
                : o.mask == RaggedMask::kFloat ? " mask float"
                                               : "");
}

inline std::ostream& operator<<(std::ostream& os, const HeadSizes& h) {
  return os << " heads " << h.num_heads << "/" << h.num_kv_heads << " dim " << h.head_dim << "/" << h.head_dim_v;
}

// Of a case: at most eight, then how many there are.
inline void print_lengths(std::ostream& os, const char* name, const std::vector<int64_t>& lengths) {
  os << name;
  for (size_t i = 0; i < lengths.size() && i < 8; ++i) os << " " << lengths[i];
  if (lengths.size() > 8) os << " ... (" << lengths.size() << ")";
}

// The options' arrays.
struct OptionArrays {
  OptionArrays() = default;
  OptionArrays(const RaggedOptions& o, DType dtype, int64_t batch, int64_t heads, int64_t longest_q, int64_t longest_k,
               std::mt19937& random) {
    if (o.sinks) sinks = Tensor(dtype, {heads}), sinks.fill_random(random);
    if (o.alibi) alibi = Tensor(DType::kFloat32, {batch, heads}), alibi.fill_random(random, 0.0, 0.2);
    if (o.mask == RaggedMask::kBool) {
      mask = Tensor(DType::kBool, {batch, longest_q, longest_k});
      mask.each([&](unsigned char* at) { store(DType::kBool, random() % 3 != 0, at); });
    }
    if (o.mask == RaggedMask::kFloat) {
      mask = Tensor(DType::kFloat32, {1, heads, longest_q, longest_k}, Storage::kPadded);
      mask.fill_random(random);
      mask.each([&](unsigned char* at) {
        if (random() % 4 == 0) store(DType::kFloat32, -INFINITY, at);
      });
    }
  }

  Tensor sinks, alibi, mask;
};

inline void set_options(AttentionOptions& to, const RaggedOptions& from) {
  to.is_causal = from.is_causal;
  to.window_left = from.window_left, to.window_right = from.window_right;
  to.softcap = from.softcap;
  to.scale = from.scale;
}

inline void set_options(AttentionTensors& to, const RaggedOptions& from, OptionArrays& arrays) {
  if (from.sinks) to.sinks = arrays.sinks.view();
  if (from.alibi) to.alibi_slopes = arrays.alibi.view();
  if (from.mask != RaggedMask::kNone) to.mask = arrays.mask.view();
}

// For sequence b, whose head_dim is set.
inline void set_options(Sequence& to, const RaggedOptions& from, const OptionArrays& arrays, int64_t b) {
  to.is_causal = from.is_causal;
  to.window_left = from.window_left, to.window_right = from.window_right;
  to.softcap = from.softcap;
  to.scale = from.scale ? *from.scale : 1.0 / std::sqrt(static_cast<double>(to.head_dim));
  if (from.sinks) to.sink = [&arrays](int64_t h) { return arrays.sinks.at(h); };
  if (from.alibi) to.slope = [&arrays, b](int64_t h) { return arrays.alibi.at(b, h); };
  if (from.mask == RaggedMask::kBool) {
    to.bias = [&arrays, b](int64_t, int64_t i, int64_t j) { return arrays.mask.at(b, i, j) != 0.0 ? 0.0 : -INFINITY; };
  }
  if (from.mask == RaggedMask::kFloat) {
    to.bias = [&arrays](int64_t h, int64_t i, int64_t j) { return arrays.mask.at(0, h, i, j); };
  }
}

// Prefix sums from `start`.
inline std::vector<int64_t> prefix_sums(const std::vector<int64_t>& lengths, int64_t start) {
  std::vector<int64_t> sums{start};
  for (int64_t length : lengths) sums.push_back(sums.back() + length);
  return sums;
}

inline int64_t longest_of(const std::vector<int64_t>& lengths) {
  return lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
}

// All rows of a sequence whose packed queries start at `first`.
inline void expect_packed_rows(const Sequence& s, int64_t first, const Tensor& out, const Tensor& lse) {
  const Reference reference(s);
  for (int64_t i = 0; i < s.len_q; ++i) {
    for (int64_t head = 0; head < s.num_heads; ++head) {
      const Row row = reference.row(i, head);
      ASSERT_TRUE(near(lse.at(head, first + i), row.lse, lse_bound(out.dtype()))) << "lse of token " << first + i;
      for (int64_t d = 0; d < s.head_dim_v; ++d) {
        ASSERT_TRUE(near(out.at(first + i, head, d), row.out[static_cast<size_t>(d)], out_bound(out.dtype())))
            << "out of token " << first + i << " head " << head << " dim " << d;
      }
    }
  }
}

}  // namespace dlattn::test
