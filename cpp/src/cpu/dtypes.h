// The 16-bit types as storage, and their scalar conversions. Everything is `static`: the files that include this are compiled
// for different instruction sets and must not share a symbol.
#pragma once

#include <cstdint>
#include <cstring>

namespace dlattn::cpu {

struct Float16 {
  uint16_t bits;
};

struct BFloat16 {
  uint16_t bits;
};

static inline float bits_to_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

static inline uint32_t float_to_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}

static inline float to_float(float value) { return value; }

static inline float to_float(BFloat16 value) { return bits_to_float(static_cast<uint32_t>(value.bits) << 16); }

static inline float to_float(Float16 value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
  const uint32_t magnitude = value.bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return bits_to_float(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  if (magnitude >= 0x400u) return bits_to_float(sign | ((magnitude << 13) + (112u << 23)));
  const float subnormal = static_cast<float>(magnitude) * 0x1p-24f;
  return bits_to_float(sign | float_to_bits(subnormal));
}

static inline void from_float(float value, float* out) { *out = value; }

// Round to nearest, ties to even; NaN stays a NaN.
static inline void from_float(float value, BFloat16* out) {
  const uint32_t bits = float_to_bits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    out->bits = static_cast<uint16_t>(bits >> 16 | 0x40u);
  } else {
    out->bits = static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
  }
}

static inline void from_float(float value, Float16* out) {
  const uint32_t bits = float_to_bits(value);
  const uint32_t sign = bits >> 16 & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t half;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u | (magnitude >> 13 & 0x3ffu);
  } else if (magnitude >= 0x477ff000u) {  // rounds to 65536 or more
    half = 0x7c00u;
  } else if (magnitude >= 0x38800000u) {  // normal: 2^-14 and above
    half = (magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
  } else {  // adding 0.5 leaves the rounded multiple of 2^-24 in the low bits of the mantissa
    half = float_to_bits(bits_to_float(magnitude) + 0.5f) - 0x3f000000u;
  }
  out->bits = static_cast<uint16_t>(sign | half);
}

}  // namespace dlattn::cpu
