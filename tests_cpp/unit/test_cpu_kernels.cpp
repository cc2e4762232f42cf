// The per-instruction-set functions: conversions of every 16-bit value, rotation, and that the levels agree.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "cpu/dtypes.h"
#include "cpu/isa.h"

namespace {

using namespace dlattn::cpu;
using dlattn::DType;

const DTypeKernels& of(const Kernels& level, DType dtype) { return level.by_dtype[static_cast<int>(dtype)]; }

// The value of a 16-bit pattern by the definition of its format.
double value_of(uint16_t bits, int exponent_bits) {
  const int mantissa_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = bits >> mantissa_bits & ((1 << exponent_bits) - 1), mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = bits >> 15 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1)
    return mantissa ? std::nan("") : sign * std::numeric_limits<double>::infinity();
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
}

TEST(CpuKernels, LoadsEvery16BitValue) {
  std::vector<uint16_t> all(65536 + 3);  // an odd count reaches the scalar end
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  std::vector<float> got(all.size());
  for (const Kernels* level : available_kernels()) {
    for (const auto& [dtype, exponent_bits] : {std::pair{DType::kFloat16, 5}, std::pair{DType::kBFloat16, 8}}) {
      of(*level, dtype).load(all.data(), got.data(), static_cast<int64_t>(all.size()));
      for (size_t i = 0; i < all.size(); ++i) {
        const double want = value_of(all[i], exponent_bits);
        if (std::isnan(want)) {
          ASSERT_TRUE(std::isnan(got[i])) << level->isa << " bits " << all[i];
        } else {
          ASSERT_EQ(got[i], want) << level->isa << " bits " << all[i];
          ASSERT_EQ(std::signbit(got[i]), std::signbit(want)) << level->isa << " bits " << all[i];
        }
      }
    }
  }
}

// Around every representable value: itself, the middle to its neighbour (ties to even) and both sides of that.
TEST(CpuKernels, RoundsToNearestEven) {
  for (const auto& [dtype, exponent_bits] : {std::pair{DType::kFloat16, 5}, std::pair{DType::kBFloat16, 8}}) {
    const uint16_t infinity = static_cast<uint16_t>(((1 << exponent_bits) - 1) << (15 - exponent_bits));
    std::vector<float> values;
    std::vector<uint16_t> want;
    for (uint16_t bits = 0; bits < infinity; ++bits) {
      const double here = value_of(bits, exponent_bits);
      double next = value_of(static_cast<uint16_t>(bits + 1), exponent_bits);
      if (std::isinf(next)) next = 2 * here - value_of(static_cast<uint16_t>(bits - 1), exponent_bits);
      const double middle = (here + next) / 2;
      const auto middle_float = static_cast<float>(middle);
      const uint16_t even = bits & 1 ? static_cast<uint16_t>(bits + 1) : bits;
      for (float sign : {1.0f, -1.0f}) {
        const uint16_t s = sign < 0 ? 0x8000 : 0;
        const auto add = [&](float x, uint16_t w) {
          values.push_back(sign * x);
          want.push_back(static_cast<uint16_t>(w | s));
        };
        add(static_cast<float>(here), bits);
        if (middle_float != middle) continue;  // below float32's own denormals
        add(middle_float, even);
        add(std::nextafterf(middle_float, 0.0f), bits);
        add(std::nextafterf(middle_float, std::numeric_limits<float>::infinity()), static_cast<uint16_t>(bits + 1));
      }
    }
    values.push_back(std::numeric_limits<float>::infinity());
    want.push_back(infinity);
    std::vector<uint16_t> got(values.size());
    for (const Kernels* level : available_kernels()) {
      of(*level, dtype).store(values.data(), got.data(), static_cast<int64_t>(values.size()));
      for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(got[i], want[i]) << level->isa << " " << values[i];
    }
  }
}

TEST(CpuKernels, StoresNaNAsNaN) {
  const std::vector<float> values(19, std::nanf(""));
  for (const Kernels* level : available_kernels()) {
    for (DType dtype : {DType::kFloat16, DType::kBFloat16}) {
      std::vector<uint16_t> bits(values.size());
      std::vector<float> back(values.size());
      of(*level, dtype).store(values.data(), bits.data(), 19);
      of(*level, dtype).load(bits.data(), back.data(), 19);
      for (float x : back) EXPECT_TRUE(std::isnan(x)) << level->isa;
    }
  }
}

TEST(CpuKernels, RotatesPairsOfBothStyles) {
  for (const Kernels* level : available_kernels()) {
    for (int rotary_dim : {0, 2, 6, 16, 30, 64}) {
      for (bool interleaved : {false, true}) {
        const int head_dim = rotary_dim + 3, half = rotary_dim / 2;
        std::vector<float> x(static_cast<size_t>(2 * head_dim)), y(x.size(), std::nanf("")),
            cos(static_cast<size_t>(half)), sin(static_cast<size_t>(half));
        for (size_t i = 0; i < x.size(); ++i) x[i] = 0.25f * static_cast<float>(i % 13) - 1.0f;
        for (int i = 0; i < half; ++i) {
          cos[static_cast<size_t>(i)] = std::cos(0.3f * static_cast<float>(i + 1));
          sin[static_cast<size_t>(i)] = std::sin(0.3f * static_cast<float>(i + 1));
        }
        RotaryRows rows;
        rows.src = x.data();
        rows.dst = y.data();
        rows.src_stride_head = rows.dst_stride_head = head_dim;
        rows.num_heads = 2;
        rows.head_dim = head_dim;
        rows.rotary_dim = rotary_dim;
        rows.interleaved = interleaved;
        rows.cos = cos.data();
        rows.sin = sin.data();
        of(*level, DType::kFloat32).rotate(rows);
        for (int head = 0; head < 2; ++head) {
          const float* a = x.data() + head * head_dim;
          const float* b = y.data() + head * head_dim;
          for (int i = 0; i < half; ++i) {
            const int first = interleaved ? 2 * i : i, second = interleaved ? 2 * i + 1 : i + half;
            const double c = cos[static_cast<size_t>(i)], s = sin[static_cast<size_t>(i)];
            EXPECT_NEAR(b[first], a[first] * c - a[second] * s, 1e-6);
            EXPECT_NEAR(b[second], a[second] * c + a[first] * s, 1e-6);
          }
          for (int i = rotary_dim; i < head_dim; ++i) EXPECT_EQ(b[i], a[i]);
        }
      }
    }
  }
}

TEST(CpuKernels, BaselineIsAlwaysThere) {
  ASSERT_FALSE(available_kernels().empty());
  EXPECT_STREQ(available_kernels().front()->isa, "baseline");
}

}  // namespace
