// What the tests of ragged and paged attention share: packed queries and the comparison of their rows.
#pragma once

#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "dlattn/dlattn.h"
#include "support/compare.h"
#include "support/cpu_test.h"
#include "support/reference.h"
#include "support/tensor.h"

namespace dlattn::test {

struct RaggedOptions {
  bool is_causal = false;
  int64_t window_left = -1, window_right = -1;
  float softcap = 0.0f;
};

inline void set_options(AttentionOptions& to, const RaggedOptions& from) {
  to.is_causal = from.is_causal;
  to.window_left = from.window_left, to.window_right = from.window_right;
  to.softcap = from.softcap;
}

inline void set_options(Sequence& to, const RaggedOptions& from) {
  to.is_causal = from.is_causal;
  to.window_left = from.window_left, to.window_right = from.window_right;
  to.softcap = from.softcap;
  to.scale = 1.0 / std::sqrt(static_cast<double>(to.head_dim));
}

// Prefix sums from `start`.
inline std::vector<int64_t> prefix_sums(const std::vector<int64_t>& lengths, int64_t start) {
  std::vector<int64_t> sums{start};
  for (int64_t length : lengths) sums.push_back(sums.back() + length);
  return sums;
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

inline std::vector<unsigned char> joined(const Tensor& a, const Tensor& b) {
  std::vector<unsigned char> bytes = a.bytes();
  bytes.insert(bytes.end(), b.bytes().begin(), b.bytes().end());
  return bytes;
}

}  // namespace dlattn::test
