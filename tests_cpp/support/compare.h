// The error that a result may have, in one table.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "dlattn/params.h"

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

}  // namespace dlattn::test
