// Four floats by the compiler's own vector type: runs on any processor (SSE2 on x86-64, NEON on aarch64).
#pragma once

#include <cstdint>
#include <cstring>

#include "cpu/dtypes.h"

namespace dlattn::cpu {
namespace {

struct Simd {
  static constexpr int kWidth = 4;
  static constexpr int kTileRows = 4;  // rows of the register tile of a matrix product; 2 vectors wide
  typedef float Reg __attribute__((vector_size(16)));
  typedef int32_t IntReg __attribute__((vector_size(16)));

  static Reg zero() { return Reg{}; }
  static Reg set1(float x) { return Reg{x, x, x, x}; }
  static Reg load(const float* p) {
    Reg r;
    std::memcpy(&r, p, sizeof(r));
    return r;
  }
  static Reg load(const BFloat16* p) { return Reg{to_float(p[0]), to_float(p[1]), to_float(p[2]), to_float(p[3])}; }
  static Reg load(const Float16* p) { return Reg{to_float(p[0]), to_float(p[1]), to_float(p[2]), to_float(p[3])}; }
  static void store(float* p, Reg r) { std::memcpy(p, &r, sizeof(r)); }
  template <class T>
  static void store(T* p, Reg r) {
    for (int i = 0; i < kWidth; ++i) from_float(r[i], p + i);
  }
  static Reg fma(Reg a, Reg b, Reg c) { return a * b + c; }
  // A NaN in `a` is dropped, so that max(score, max_so_far) ignores NaN scores.
  static Reg max(Reg a, Reg b) { return a > b ? a : b; }
  static Reg div(Reg a, Reg b) { return a / b; }
  static Reg abs(Reg a) { return (Reg)((IntReg)a & 0x7fffffff); }
  static Reg select_less(Reg a, Reg b, Reg yes, Reg no) { return a < b ? yes : no; }
  static Reg round(Reg a) { return a + 12582912.0f - 12582912.0f; }  // |a| < 2^22
  // p * 2^n for a whole number n <= 0; 0 below n = -126.
  static Reg scale_by_exp2(Reg p, Reg n) {
    const Reg clamped = n < -127.0f ? set1(-127.0f) : n;
    const Reg magic = clamped + 12582912.0f;
    return p * (Reg)(((IntReg)magic << 23) + 0x3f800000);
  }
  static float sum(Reg a) { return (a[0] + a[2]) + (a[1] + a[3]); }
  static float max_of(Reg a) {
    const float x = a[0] > a[1] ? a[0] : a[1], y = a[2] > a[3] ? a[2] : a[3];
    return x > y ? x : y;
  }
  // Element i of the result is the sum of acc[i].
  static Reg sums(const Reg (&acc)[4]) { return Reg{sum(acc[0]), sum(acc[1]), sum(acc[2]), sum(acc[3])}; }
  // dst[j * stride + i] = row i, element j, for kWidth rows and elements.
  static void store_transposed(const Reg (&rows)[4], float* dst, int stride) {
    for (int j = 0; j < 4; ++j) store(dst + j * stride, Reg{rows[0][j], rows[1][j], rows[2][j], rows[3][j]});
  }
};

}  // namespace
}  // namespace dlattn::cpu
