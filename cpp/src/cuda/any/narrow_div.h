// Division of numbers below 2^31 by one that is known before the launch: a 32 x 32 bit multiplication and a shift.
//
// n / d = floor(n m / 2^(31 + l)) with l = ceil(log2 d), m = ceil(2^(31 + l) / d) <= 2^32 - 1
// (Granlund & Montgomery, "Division by invariant integers using multiplication", 1994, theorem 4.2).
#pragma once

#include <cstdint>

#include "host_device.h"

namespace dlattn::cuda {

struct NarrowDiv {
  uint32_t multiplier = UINT32_C(1) << 31;
  int32_t shift = 31;

  NarrowDiv() = default;
  explicit NarrowDiv(int64_t d) {  // 1 <= d < 2^31
    int log2 = 0;
    while ((INT64_C(1) << log2) < d) ++log2;
    shift = 31 + log2;
    const uint64_t power = UINT64_C(1) << shift, divisor = static_cast<uint64_t>(d);
    multiplier = static_cast<uint32_t>(power / divisor + (power % divisor != 0));
  }

  DLATTN_HOST_DEVICE uint32_t div(uint32_t n) const {
    return static_cast<uint32_t>((static_cast<uint64_t>(n) * multiplier) >> shift);
  }
};

}  // namespace dlattn::cuda
