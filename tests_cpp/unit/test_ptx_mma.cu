// Where the wrappers of ptx/ldmatrix.cuh, ptx/mma_sync.cuh and ptx/cp_async.cuh leave what they say they do.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/mma_sync.cuh"
#include "unit/ptx_test.h"

namespace dlattn::test {
namespace {

using PtxMmaTest = PtxTest<cuda::Family::kMma>;

// ---- ldmatrix

constexpr int kPitch = 24;  // elements of a row: 16 and a gap

// in: 16 x 16 elements. Lane l gives row l % 8 of matrix l / 8; matrix m is at rows m % 2 * 8, columns m / 2 * 8.
template <bool kTransposed>
__global__ void load_matrices(const uint16_t* in, uint32_t* out) {
  __shared__ __align__(16) uint16_t rows[16][kPitch];
  for (int i = static_cast<int>(threadIdx.x); i < 256; i += 32) rows[i / 16][i % 16] = in[i];
  __syncwarp();
  const int lane = static_cast<int>(threadIdx.x), matrix = lane / 8;
  const uint32_t address = cuda::ptx::smem_address(&rows[matrix % 2 * 8 + lane % 8][matrix / 2 * 8]);
  uint32_t r[4];
  if constexpr (kTransposed) {
    cuda::ptx::ldmatrix_x4_trans(r, address);
  } else {
    cuda::ptx::ldmatrix_x4(r, address);
  }
  for (int i = 0; i < 4; ++i) out[4 * lane + i] = r[i];
}

std::vector<uint16_t> numbered(int count) {
  std::vector<uint16_t> numbers;
  for (int i = 0; i < count; ++i) numbers.push_back(static_cast<uint16_t>(3 * i + 1));
  return numbers;
}

TEST_F(PtxMmaTest, LdmatrixGivesEachLaneTwoNeighboursOfARow) {
  const std::vector<uint16_t> in = numbered(256);
  const auto out = out_of<uint32_t>(
      in, 128, [&](const uint16_t* from, uint32_t* to) { load_matrices<false><<<1, 32, 0, stream()>>>(from, to); });
  for (uint32_t lane = 0; lane < 32; ++lane) {
    for (uint32_t m = 0; m < 4; ++m) {
      const uint32_t row = m % 2 * 8 + lane / 4, column = m / 2 * 8 + 2 * (lane % 4);
      EXPECT_EQ(out[4 * lane + m] & 0xffff, in[16 * row + column]) << "lane " << lane << ", matrix " << m;
      EXPECT_EQ(out[4 * lane + m] >> 16, in[16 * row + column + 1]) << "lane " << lane << ", matrix " << m;
    }
  }
}

TEST_F(PtxMmaTest, LdmatrixTransposedGivesEachLaneTwoNeighboursOfAColumn) {
  const std::vector<uint16_t> in = numbered(256);
  const auto out = out_of<uint32_t>(
      in, 128, [&](const uint16_t* from, uint32_t* to) { load_matrices<true><<<1, 32, 0, stream()>>>(from, to); });
  for (uint32_t lane = 0; lane < 32; ++lane) {
    for (uint32_t m = 0; m < 4; ++m) {
      const uint32_t row = m % 2 * 8 + 2 * (lane % 4), column = m / 2 * 8 + lane / 4;
      EXPECT_EQ(out[4 * lane + m] & 0xffff, in[16 * row + column]) << "lane " << lane << ", matrix " << m;
      EXPECT_EQ(out[4 * lane + m] >> 16, in[16 * (row + 1) + column]) << "lane " << lane << ", matrix " << m;
    }
  }
}

// ---- mma

// in: a [16, 16], b [16, 8], c [16, 8] in float32, as the fragments' description has them. out: c + a b [16, 8]
template <typename T>
__global__ void multiply(const float* in, float* out) {
  const int lane = static_cast<int>(threadIdx.x), g = lane / 4, t = lane % 4;
  const float *a = in, *b = a + 256, *c = b + 128;
  const auto pair = [](float low, float high) {
    const T both[2] = {static_cast<T>(low), static_cast<T>(high)};
    uint32_t word;
    memcpy(&word, both, sizeof(word));
    return word;
  };
  const auto of_a = [&](int row, int column) { return pair(a[16 * row + column], a[16 * row + column + 1]); };
  const auto of_b = [&](int row) { return pair(b[8 * row + g], b[8 * (row + 1) + g]); };
  const uint32_t fragment[4] = {of_a(g, 2 * t), of_a(g + 8, 2 * t), of_a(g, 2 * t + 8), of_a(g + 8, 2 * t + 8)};
  float sums[4] = {c[8 * g + 2 * t], c[8 * g + 2 * t + 1], c[8 * (g + 8) + 2 * t], c[8 * (g + 8) + 2 * t + 1]};
  cuda::ptx::mma_m16n8k16<T>(sums, fragment, of_b(2 * t), of_b(2 * t + 8));
  out[8 * g + 2 * t] = sums[0], out[8 * g + 2 * t + 1] = sums[1];
  out[8 * (g + 8) + 2 * t] = sums[2], out[8 * (g + 8) + 2 * t + 1] = sums[3];
}

class PtxMmaProductTest : public PtxMmaTest {
 protected:
  // Small whole numbers, which both dtypes and all sums hold: every element is exact.
  template <typename T>
  void expect_product() {
    std::vector<float> in;
    for (int i = 0; i < 256; ++i) in.push_back(static_cast<float>((7 * i + i / 16) % 31 - 15));
    for (int i = 0; i < 128; ++i) in.push_back(static_cast<float>((11 * i + i / 8) % 29 - 14));
    for (int i = 0; i < 128; ++i) in.push_back(1e6f + static_cast<float>(i) / 4);  // more than 16 bits hold
    const auto out =
        out_of<float>(in, 128, [&](const float* from, float* to) { multiply<T><<<1, 32, 0, stream()>>>(from, to); });
    for (size_t row = 0; row < 16; ++row) {
      for (size_t column = 0; column < 8; ++column) {
        float sum = in[384 + 8 * row + column];
        for (size_t k = 0; k < 16; ++k) sum += in[16 * row + k] * in[256 + 8 * k + column];
        EXPECT_EQ(out[8 * row + column], sum) << "row " << row << ", column " << column;
      }
    }
  }
};

TEST_F(PtxMmaProductTest, AddsTheProductOfFloat16) { expect_product<__half>(); }
TEST_F(PtxMmaProductTest, AddsTheProductOfBFloat16) { expect_product<__nv_bfloat16>(); }

// ---- cp.async

constexpr uint32_t kBefore = 0x5a5a5a5a;  // what lies in shared memory before a copy

enum class Copy { k4, k8, k16, k16OrZeros, k16OrNothing };

// Each lane copies to 16 bytes of its own, from its 16 bytes of `in`. What is not to be read has no address.
template <Copy kCopy>
__global__ void copy_async(const uint32_t* in, uint32_t* out) {
  __shared__ __align__(16) uint32_t words[32][4];
  const int lane = static_cast<int>(threadIdx.x);
  for (uint32_t& word : words[lane]) word = kBefore;
  const uint32_t to = cuda::ptx::smem_address(words[lane]);
  const uint32_t* from = in + 4 * lane;
  const bool is_odd = lane % 2 == 1;
  if constexpr (kCopy == Copy::k4) cuda::ptx::cp_async_4(to + 4, from + 1);
  if constexpr (kCopy == Copy::k8) cuda::ptx::cp_async_8(to + 8, from + 2);
  if constexpr (kCopy == Copy::k16) cuda::ptx::cp_async_16(to, from, true);
  if constexpr (kCopy == Copy::k16OrZeros) cuda::ptx::cp_async_16(to, is_odd ? from : nullptr, is_odd);
  if constexpr (kCopy == Copy::k16OrNothing) cuda::ptx::cp_async_16_if(is_odd, to, is_odd ? from : nullptr);
  cuda::ptx::cp_async_commit();
  cuda::ptx::cp_async_wait<0>();
  for (int i = 0; i < 4; ++i) out[4 * lane + i] = words[lane][i];
}

// Two groups: the first is there while the second may be on its way; both are in the end.
__global__ void copy_in_groups(const uint32_t* in, uint32_t* out) {
  __shared__ __align__(16) uint32_t words[2][32][4];
  const int lane = static_cast<int>(threadIdx.x);
  for (int n = 0; n < 2; ++n) {
    cuda::ptx::cp_async_16(cuda::ptx::smem_address(words[n][lane]), in + 128 * n + 4 * lane, true);
    cuda::ptx::cp_async_commit();
  }
  cuda::ptx::cp_async_wait<1>();
  for (int i = 0; i < 4; ++i) out[4 * lane + i] = words[0][lane][i];
  cuda::ptx::cp_async_wait<0>();
  for (int i = 0; i < 4; ++i) out[128 + 4 * lane + i] = words[1][lane][i];
}

class PtxCopyTest : public PtxMmaTest {
 protected:
  // `expected(lane, word, read)`: of the four words of a lane, `read` being the one of `in`.
  template <Copy kCopy, typename Expected>
  void expect_words(Expected&& expected) {
    std::vector<uint32_t> in;
    for (uint32_t i = 0; i < 128; ++i) in.push_back(0x01000193u * (i + 1));
    const auto out = out_of<uint32_t>(
        in, 128, [&](const uint32_t* from, uint32_t* to) { copy_async<kCopy><<<1, 32, 0, stream()>>>(from, to); });
    for (size_t lane = 0; lane < 32; ++lane) {
      for (size_t word = 0; word < 4; ++word) {
        EXPECT_EQ(out[4 * lane + word], expected(lane, word, in[4 * lane + word])) << "lane " << lane << ", " << word;
      }
    }
  }
};

TEST_F(PtxCopyTest, FourBytes) {
  expect_words<Copy::k4>([](size_t, size_t word, uint32_t read) { return word == 1 ? read : kBefore; });
}
TEST_F(PtxCopyTest, EightBytes) {
  expect_words<Copy::k8>([](size_t, size_t word, uint32_t read) { return word >= 2 ? read : kBefore; });
}
TEST_F(PtxCopyTest, SixteenBytes) {
  expect_words<Copy::k16>([](size_t, size_t, uint32_t read) { return read; });
}
TEST_F(PtxCopyTest, SixteenBytesOrZeros) {
  expect_words<Copy::k16OrZeros>([](size_t lane, size_t, uint32_t read) { return lane % 2 == 1 ? read : 0u; });
}
TEST_F(PtxCopyTest, SixteenBytesOrNothing) {
  expect_words<Copy::k16OrNothing>([](size_t lane, size_t, uint32_t read) { return lane % 2 == 1 ? read : kBefore; });
}

TEST_F(PtxCopyTest, GroupsComeInTheirOrder) {
  std::vector<uint32_t> in;
  for (uint32_t i = 0; i < 256; ++i) in.push_back(0x01000193u * (i + 1));
  const auto out = out_of<uint32_t>(
      in, 256, [&](const uint32_t* from, uint32_t* to) { copy_in_groups<<<1, 32, 0, stream()>>>(from, to); });
  EXPECT_EQ(out, in);
}

}  // namespace
}  // namespace dlattn::test
