// The error that a result may have, in one table.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dlattn/params.h"
#include "support/tensor.h"

namespace dlattn::test {

struct Bound {
  double absolute, relative;
};

// Inputs are uniform in -1.5 .. 1.5. 16-bit results: the probabilities may be rounded once, the sum is, both to nearest.
inline Bound out_bound(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return {1e-3, 0x1p-10};
    case DType::kBFloat16:
      return {8e-3, 0x1p-7};
    default:
      return {4e-6, 1e-5};
  }
}

inline Bound lse_bound(DType dtype) { return dtype == DType::kFloat32 ? Bound{1e-5, 2e-6} : Bound{1e-3, 1e-5}; }

// Of a kernel against the CPU backend in float32: in float32 both are off, the more the larger the scores are. A product of
// two inputs has a standard deviation of 1.5^2 / 3 = 0.75, a score one of 0.75 |scale| sqrt(head_dim), and the largest score
// is about six of them. Each side rounds it, and the sum that leads to it, by up to a unit in the last place, 2^-23 of it in
// all. exp() turns that into the relative error of a weight, which moves the mean of the values, -1.5 .. 1.5, by up to 1.5
// times as much. With the default scale that is 1.6e-6, which the first bound holds; from a score of 22 on it counts.
inline Bound kernel_bound(DType dtype, std::optional<float> scale, int64_t head_dim) {
  if (dtype != DType::kFloat32) return out_bound(dtype);
  const double root = std::sqrt(static_cast<double>(head_dim));
  const double largest_score = 6 * 0.75 * (scale ? std::fabs(*scale) * root : 1.0);
  return {std::max(8e-6, 2 * 1.5 * 0x1p-23 * largest_score), 2e-5};
}

// One rounding of a value computed in float32.
inline Bound rounding_bound(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return {1e-6, 0x1p-11 * 1.01};
    case DType::kBFloat16:
      return {1e-6, 0x1p-8 * 1.01};
    default:
      return {1e-6, 1e-6};
  }
}

inline ::testing::AssertionResult near(double got, double want, Bound bound) {
  if (std::isnan(want) ? std::isnan(got) : std::isinf(want) ? got == want : false) return ::testing::AssertionSuccess();
  if (std::isfinite(got) && std::isfinite(want) &&
      std::fabs(got - want) <= bound.absolute + bound.relative * std::fabs(want)) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure() << "got " << got << ", expected " << want << ", off by " << got - want;
}

// Every element of two tensors of one shape; the first that is off is named, with the error of all of them.
inline void expect_near(const char* name, Tensor& got, Tensor& want, Bound bound) {
  const std::vector<double> values = got.values(), expected = want.values();
  ASSERT_EQ(values.size(), expected.size()) << name;
  double error = 0.0, norm = 0.0;
  size_t wrong = 0, first = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isfinite(values[i]) && std::isfinite(expected[i])) {
      error += (values[i] - expected[i]) * (values[i] - expected[i]), norm += expected[i] * expected[i];
    }
    if (near(values[i], expected[i], bound)) continue;
    if (wrong++ == 0) first = i;
  }
  if (wrong == 0) return;
  std::string index;
  for (size_t axis = got.shape().size(), rest = first; axis-- > 0; rest /= static_cast<size_t>(got.shape()[axis])) {
    index = std::to_string(rest % static_cast<size_t>(got.shape()[axis])) + (index.empty() ? "" : ",") + index;
  }
  FAIL() << name << "[" << index << "]: " << near(values[first], expected[first], bound).message() << "; " << wrong
         << " of " << values.size() << " elements are off, relative L2 " << std::sqrt(error / norm);
}

}  // namespace dlattn::test
