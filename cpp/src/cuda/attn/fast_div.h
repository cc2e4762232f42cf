// Division by a number that is known before the launch: a multiplication and a shift. Host and device.
//
// For 1 <= d < 2^62 and 0 <= n < 2^62: n / d = floor(n m / 2^(62 + l)) with l = ceil(log2 d), m = ceil(2^(62 + l) / d)
// (Granlund & Montgomery, "Division by invariant integers using multiplication", 1994, theorem 4.2). m < 2^63 + 1.
#pragma once

#include <cstdint>

#include "host_device.h"

namespace dlattn::cuda {

__extension__ using uint128 = unsigned __int128;  // of gcc and nvcc

struct FastDiv {
  int64_t divisor = 1;
  uint64_t multiplier = 0;  // 0: the divisor is a power of two, 2^shift
  int32_t shift = 0;

  FastDiv() = default;
  explicit FastDiv(int64_t d) : divisor(d) {
    int log2 = 0;
    while (log2 < 62 && (INT64_C(1) << log2) < d) ++log2;
    if (d >> 62 != 0 || (INT64_C(1) << log2) == d) {  // beyond 2^62 every quotient is 0
      shift = log2;
      return;
    }
    // not a power of two, so d >= 3 and log2 >= 2: the product's high word is 2^(log2 - 2) times the quotient
    const auto power = static_cast<uint128>(1) << (62 + log2);
    multiplier = static_cast<uint64_t>((power + static_cast<uint64_t>(d) - 1) / static_cast<uint64_t>(d));
    shift = log2 - 2;
  }

  DLATTN_HOST_DEVICE int64_t div(int64_t n) const {
    if (multiplier == 0) return n >> shift;
    const auto product = static_cast<uint128>(static_cast<uint64_t>(n)) * multiplier;
    return static_cast<int64_t>(static_cast<uint64_t>(product >> 64) >> shift);
  }
};

}  // namespace dlattn::cuda
