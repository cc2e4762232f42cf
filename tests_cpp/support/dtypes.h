// float16 and bfloat16 from the definition of the formats, independent of the library's conversions.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "dlattn/params.h"

namespace dlattn::test {

inline int64_t item_size(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
    case DType::kBFloat16:
      return 2;
    case DType::kBool:
      return 1;
    case DType::kInt64:
      return 8;
    default:
      return 4;
  }
}

inline const char* dtype_name(DType dtype) {
  const char* names[] = {"float32", "float16", "bfloat16", "bool", "int32", "int64"};
  return names[static_cast<int>(dtype)];
}

// Bits of the nearest value, ties to even.
inline uint16_t encode_16(double x, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const auto sign = static_cast<uint16_t>(std::signbit(x) ? 0x8000 : 0);
  const auto infinity = static_cast<uint16_t>(((1 << exponent_bits) - 1) << mantissa_bits);
  if (std::isnan(x)) return static_cast<uint16_t>(infinity | 1 << (mantissa_bits - 1));
  x = std::fabs(x);
  if (x == 0.0) return sign;
  if (std::isinf(x)) return sign | infinity;
  int exponent = std::ilogb(x);
  if (exponent < 1 - bias) exponent = 1 - bias;  // subnormals share the smallest exponent
  double steps = std::nearbyint(std::ldexp(x, mantissa_bits - exponent));
  // steps counts units of the last place; a carry moves into the exponent by itself.
  const double bits = steps + std::ldexp(exponent + bias - 1, mantissa_bits);
  return static_cast<uint16_t>(sign | (bits >= infinity ? infinity : static_cast<uint16_t>(bits)));
}

inline double decode_16(uint16_t bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = bits >> mantissa_bits & ((1 << exponent_bits) - 1);
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = bits & 0x8000 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1) {
    return mantissa ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

inline void store(DType dtype, double value, void* to) {
  const auto put = [to](auto x) { std::memcpy(to, &x, sizeof x); };
  switch (dtype) {
    case DType::kFloat32:
      return put(static_cast<float>(value));
    case DType::kFloat16:
      return put(encode_16(value, 5, 10));
    case DType::kBFloat16:
      return put(encode_16(value, 8, 7));
    case DType::kBool:
      return put(static_cast<uint8_t>(value != 0.0));
    case DType::kInt32:
      return put(static_cast<int32_t>(value));
    case DType::kInt64:
      return put(static_cast<int64_t>(value));
  }
}

inline double load(DType dtype, const void* from) {
  const auto get = [from](auto x) {
    std::memcpy(&x, from, sizeof x);
    return x;
  };
  switch (dtype) {
    case DType::kFloat32:
      return get(0.0f);
    case DType::kFloat16:
      return decode_16(get(uint16_t{0}), 5, 10);
    case DType::kBFloat16:
      return decode_16(get(uint16_t{0}), 8, 7);
    case DType::kBool:
      return get(uint8_t{0});
    case DType::kInt32:
      return get(int32_t{0});
    case DType::kInt64:
      return static_cast<double>(get(int64_t{0}));
  }
  return 0.0;
}

}  // namespace dlattn::test
