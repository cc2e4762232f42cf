// Sixteen floats: AVX-512 F, BW, DQ, VL.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "cpu/dtypes.h"

namespace dlattn::cpu {
namespace {

struct Simd {
  static constexpr int kWidth = 16;
  static constexpr int kTileRows = 12;
  using Reg = __m512;

  static Reg zero() { return _mm512_setzero_ps(); }
  static Reg set1(float x) { return _mm512_set1_ps(x); }
  static Reg load(const float* p) { return _mm512_loadu_ps(p); }
  static Reg load(const BFloat16* p) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
  static Reg load(const Float16* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
  static void store(float* p, Reg r) { _mm512_storeu_ps(p, r); }
  static void store(Float16* p, Reg r) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(r, _MM_FROUND_TO_NEAREST_INT));
  }
  static void store(BFloat16* p, Reg r) {
    const __m512i bits = _mm512_castps_si512(r);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    const __mmask16 nan = _mm512_cmp_ps_mask(r, r, _CMP_UNORD_Q);
    rounded = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
  }
  static Reg fma(Reg a, Reg b, Reg c) { return _mm512_fmadd_ps(a, b, c); }
  static Reg max(Reg a, Reg b) { return _mm512_max_ps(a, b); }  // a NaN in `a` is dropped
  static Reg div(Reg a, Reg b) { return _mm512_div_ps(a, b); }
  static Reg abs(Reg a) { return _mm512_abs_ps(a); }
  static Reg select_less(Reg a, Reg b, Reg yes, Reg no) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), no, yes);
  }
  static Reg round(Reg a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  // p * 2^n for a whole number n <= 0; 0 below n = -126. Denormal results would cost 60 times as much.
  static Reg scale_by_exp2(Reg p, Reg n) {
    return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(n, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ), p, n);
  }
  static float sum(Reg a) { return _mm512_reduce_add_ps(a); }
  static float max_of(Reg a) { return _mm512_reduce_max_ps(a); }
  static Reg sums(const Reg (&acc)[16]) {
    __m256 half[16];
    for (int i = 0; i < 16; ++i)
      half[i] = _mm256_add_ps(_mm512_castps512_ps256(acc[i]), _mm512_extractf32x8_ps(acc[i], 1));
    return _mm512_insertf32x8(_mm512_castps256_ps512(sums8(half)), sums8(half + 8), 1);
  }
  static void store_transposed(const Reg (&rows)[16], float* dst, int stride) {
    // two steps inside 128-bit lanes give 4 x 4 blocks, two steps across lanes put the blocks in place
    __m512 a[16], b[16];
    for (int i = 0; i < 16; i += 2) {
      a[i] = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
      a[i + 1] = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
      b[i + 0] = _mm512_shuffle_ps(a[i], a[i + 2], 0x44);
      b[i + 1] = _mm512_shuffle_ps(a[i], a[i + 2], 0xee);
      b[i + 2] = _mm512_shuffle_ps(a[i + 1], a[i + 3], 0x44);
      b[i + 3] = _mm512_shuffle_ps(a[i + 1], a[i + 3], 0xee);
    }
    for (int i = 0; i < 4; ++i) {
      const __m512 c0 = _mm512_shuffle_f32x4(b[i], b[i + 4], 0x88), c1 = _mm512_shuffle_f32x4(b[i], b[i + 4], 0xdd);
      const __m512 c2 = _mm512_shuffle_f32x4(b[i + 8], b[i + 12], 0x88),
                   c3 = _mm512_shuffle_f32x4(b[i + 8], b[i + 12], 0xdd);
      store(dst + (i + 0) * stride, _mm512_shuffle_f32x4(c0, c2, 0x88));
      store(dst + (i + 4) * stride, _mm512_shuffle_f32x4(c1, c3, 0x88));
      store(dst + (i + 8) * stride, _mm512_shuffle_f32x4(c0, c2, 0xdd));
      store(dst + (i + 12) * stride, _mm512_shuffle_f32x4(c1, c3, 0xdd));
    }
  }

 private:
  static __m256 sums8(const __m256* acc) {
    const __m256 t0 = _mm256_hadd_ps(acc[0], acc[1]), t1 = _mm256_hadd_ps(acc[2], acc[3]);
    const __m256 t2 = _mm256_hadd_ps(acc[4], acc[5]), t3 = _mm256_hadd_ps(acc[6], acc[7]);
    const __m256 u0 = _mm256_hadd_ps(t0, t1), u1 = _mm256_hadd_ps(t2, t3);
    return _mm256_add_ps(_mm256_permute2f128_ps(u0, u1, 0x20), _mm256_permute2f128_ps(u0, u1, 0x31));
  }
};

}  // namespace
}  // namespace dlattn::cpu
