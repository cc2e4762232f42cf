// Where the wrappers of ptx/wgmma.cuh, ptx/warp_group.cuh and ptx/stmatrix.cuh leave what they say they do.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <sstream>
#include <utility>
#include <vector>

#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/stmatrix.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/ptx/warp_group.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "unit/ptx_test.h"

namespace dlattn::test {
namespace {

namespace ptx = cuda::ptx;
using ptx::smem_address;
using PtxWgmmaTest = PtxTest<cuda::Family::kWgmma>;

constexpr uint16_t kUntouched = 0xFFFF;

// ---- stmatrix

constexpr int kPitch = 24;  // elements of a row: 16 and a gap

// in[4 lane + m]: what the lane has of matrix m, which goes to rows m % 2 * 8, columns m / 2 * 8. out: all rows.
__global__ void store_matrices(const uint32_t* in, uint16_t* out) {
  __shared__ __align__(16) uint16_t rows[16][kPitch];
  const int lane = static_cast<int>(threadIdx.x), matrix = lane / 8;
  for (int i = lane; i < 16 * kPitch; i += 32) rows[i / kPitch][i % kPitch] = kUntouched;
  __syncwarp();
  const uint32_t address = smem_address(&rows[matrix % 2 * 8 + lane % 8][matrix / 2 * 8]);
  ptx::stmatrix_x4(address, {in[4 * lane], in[4 * lane + 1], in[4 * lane + 2], in[4 * lane + 3]});
  __syncwarp();
  for (int i = lane; i < 16 * kPitch; i += 32) out[i] = rows[i / kPitch][i % kPitch];
}

TEST_F(PtxWgmmaTest, StmatrixPutsTwoNeighboursOfARow) {
  std::vector<uint32_t> in;
  for (uint32_t i = 0; i < 128; ++i) in.push_back((2 * i + 1) << 16 | 2 * i);
  const auto out = out_of<uint16_t>(
      in, 16 * kPitch, [&](const uint32_t* from, uint16_t* to) { store_matrices<<<1, 32, 0, stream()>>>(from, to); });
  std::vector<uint16_t> expected(16 * kPitch, kUntouched);
  for (uint32_t lane = 0; lane < 32; ++lane) {
    for (uint32_t m = 0; m < 4; ++m) {
      const uint32_t row = m % 2 * 8 + lane / 4, column = m / 2 * 8 + 2 * (lane % 4);
      expected[kPitch * row + column] = static_cast<uint16_t>(in[4 * lane + m] & 0xffff);
      expected[kPitch * row + column + 1] = static_cast<uint16_t>(in[4 * lane + m] >> 16);
    }
  }
  expect_same(out, expected, "rows");
}

// ---- wgmma

// Where element (row, column) of a panel (ptx/wgmma.cuh) is.
__host__ __device__ constexpr int in_panel(int row, int column) {
  return 64 * row + (column / 8 ^ row % 8) * 8 + column % 8;
}

constexpr int kDepth = 64;  // of the products: a panel of a and, if it is not transposed, of b
constexpr int kBefore = 8;  // rows that panels of b have before the first one

// Multiplies, in steps of 16: a [64, kDepth], b [kDepth, kColumns], c [64, kColumns] row-major. out [2, 64, kColumns]: a b, plus c
// if `accumulate`, a in registers and in shared memory. b begins `first_row` rows, at most kBefore, into its panels. Whatever
// else is in shared memory is NaN.
template <typename T, int kColumns, bool kTransposeB>
__global__ void __launch_bounds__(128)
    multiply(const float* a, const float* b, const float* c, float* out, int first_row, bool accumulate) {
  constexpr int kPanels = kTransposeB ? (kColumns + 63) / 64 : 1;
  constexpr int kPanelRows = (kTransposeB ? kDepth : kColumns) + kBefore, kPanelSize = kPanelRows * 64;
  __shared__ __align__(1024) T a_panel[64 * 64];
  __shared__ __align__(1024) T b_panels[kPanels * kPanelSize];
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < 64 * kDepth; i += 128) a_panel[in_panel(i / kDepth, i % kDepth)] = static_cast<T>(a[i]);
  for (int i = thread; i < kPanels * kPanelSize; i += 128) b_panels[i] = static_cast<T>(NAN);
  __syncthreads();
  for (int i = thread; i < kDepth * kColumns; i += 128) {
    const int k = i / kColumns, column = i % kColumns;
    const int at =
        kTransposeB ? column / 64 * kPanelSize + in_panel(first_row + k, column % 64) : in_panel(first_row + column, k);
    b_panels[at] = static_cast<T>(b[i]);
  }
  ptx::fence_async_shared();
  __syncthreads();

  const int g = thread % 32 / 4, t = thread % 4, row = thread / 32 * 16 + g;
  const auto place = [&](int j, int i, int e) { return (row + 8 * i) * kColumns + 8 * j + 2 * t + e; };
  const auto pair = [&](int at_row, int column) {
    const T both[2] = {static_cast<T>(a[at_row * kDepth + column]), static_cast<T>(a[at_row * kDepth + column + 1])};
    uint32_t word;
    memcpy(&word, both, sizeof(word));
    return word;
  };
  uint32_t fragments[kDepth / 16][4];
#pragma unroll
  for (int step = 0; step < kDepth / 16; ++step) {
#pragma unroll
    for (int m = 0; m < 4; ++m) fragments[step][m] = pair(row + m % 2 * 8, 16 * step + 2 * t + m / 2 * 8);
  }
  const uint64_t of_a = ptx::wgmma_descriptor(smem_address(a_panel), 0);
  const uint64_t of_b = ptx::wgmma_descriptor(smem_address(b_panels) + first_row * 128, 2 * kPanelSize);
  constexpr int kNextB = (kTransposeB ? 16 * 128 : 32) / 16;
  using Product = ptx::Wgmma<T, kColumns, kTransposeB>;
  const auto steps = [&](float* to, auto&& issue) {
    float d[kColumns / 2];
#pragma unroll
    for (int x = 0; x < kColumns / 2; ++x) d[x] = c[place(x / 4, x / 2 % 2, x % 2)];
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < kDepth / 16; ++step) issue(d, step, step > 0 || accumulate);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::wgmma_pin(d);
#pragma unroll
    for (int x = 0; x < kColumns / 2; ++x) to[place(x / 4, x / 2 % 2, x % 2)] = d[x];
  };
  steps(out, [&](auto& d, int step, bool add) { Product::rs(d, fragments[step], of_b + step * kNextB, add); });
  steps(out + 64 * kColumns,
        [&](auto& d, int step, bool add) { Product::ss(d, of_a + step * 32 / 16, of_b + step * kNextB, add); });
}

// a [64, 64], b [2, 64, 64]. out [2, 64, 64]: a b; the first is read while the other may still be in work.
__global__ void __launch_bounds__(128) multiply_in_groups(const float* a, const float* b, float* out) {
  __shared__ __align__(1024) __half panels[3][64 * 64];
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < 3 * 64 * 64; i += 128) {
    panels[i / 4096][in_panel(i / 64 % 64, i % 64)] = static_cast<__half>(i < 4096 ? a[i] : b[i - 4096]);
  }
  ptx::fence_async_shared();
  __syncthreads();
  const auto descriptor = [&](int n) { return ptx::wgmma_descriptor(smem_address(panels[n]), 0); };
  const auto issue = [&](auto& d, int n) {
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      ptx::Wgmma<__half, 64, true>::ss(d, descriptor(0) + step * 2, descriptor(n) + step * 128, step > 0);
    }
    ptx::wgmma_commit();
  };
  const auto store = [&](const auto& d, float* to) {
#pragma unroll
    for (int x = 0; x < 32; ++x) {
      const int row = thread / 32 * 16 + thread % 32 / 4 + x / 2 % 2 * 8, column = x / 4 * 8 + 2 * (thread % 4) + x % 2;
      to[64 * row + column] = d[x];
    }
  };
  float first[32], second[32];
  ptx::wgmma_fence();
  issue(first, 1);
  issue(second, 2);
  ptx::wgmma_wait<1>();
  ptx::wgmma_pin(first);
  store(first, out);
  ptx::wgmma_wait<0>();
  ptx::wgmma_pin(second);
  store(second, out + 4096);
}

class PtxProductTest : public PtxWgmmaTest {
 protected:
  // Small whole numbers, which both dtypes hold, as float32 does all sums: every element is exact.
  static std::vector<float> numbers(size_t count, uint32_t seed) {
    std::vector<float> out;
    for (size_t i = 0; i < count; ++i) {
      seed = seed * 1664525u + 1013904223u;
      out.push_back(static_cast<float>(static_cast<int>((seed >> 16) % 31) - 15));
    }
    return out;
  }

  // c + a b: a [64, depth], b [depth, columns].
  static std::vector<float> product(const float* a, const float* b, std::vector<float> c, size_t depth,
                                    size_t columns) {
    for (size_t row = 0; row < 64; ++row) {
      for (size_t k = 0; k < depth; ++k) {
        for (size_t n = 0; n < columns; ++n) c[row * columns + n] += a[row * depth + k] * b[k * columns + n];
      }
    }
    return c;
  }

  template <typename T, int kColumns, bool kTransposeB>
  void expect_product(int first_row, bool accumulate) {
    constexpr size_t kSizeA = 64 * kDepth, kSizeB = kDepth * kColumns, kSizeC = 64 * kColumns;
    std::vector<float> in = numbers(kSizeA + kSizeB, kColumns);
    for (size_t i = 0; i < kSizeC; ++i) {  // more than 16 bits hold, or not to be read
      in.push_back(accumulate ? 1e6f + static_cast<float>(i % 1000) / 4 : NAN);
    }
    const auto out = out_of<float>(in, 2 * kSizeC, [&](const float* a, float* to) {
      const float *b = a + kSizeA, *c = b + kSizeB;
      multiply<T, kColumns, kTransposeB><<<1, 128, 0, stream()>>>(a, b, c, to, first_row, accumulate);
    });
    std::vector<float> c(kSizeC, 0.0f);
    if (accumulate) std::copy(in.end() - kSizeC, in.end(), c.begin());
    const auto expected = product(in.data(), in.data() + kSizeA, c, kDepth, kColumns);
    std::ostringstream what;
    what << "N " << kColumns << ", b from row " << first_row << (accumulate ? ", added" : "");
    expect_same(std::vector<float>(out.begin(), out.begin() + kSizeC), expected, what.str() + ", rs");
    expect_same(std::vector<float>(out.begin() + kSizeC, out.end()), expected, what.str() + ", ss");
  }
  template <typename T, int kColumns, bool kTransposeB>
  void expect_products_of() {
    for (int first_row : {0, kTransposeB ? 8 : 5}) {
      for (bool accumulate : {false, true}) expect_product<T, kColumns, kTransposeB>(first_row, accumulate);
    }
  }
  template <typename T, bool kTransposeB, int... kColumns>
  void expect_products(std::integer_sequence<int, kColumns...>) {
    (expect_products_of<T, kColumns, kTransposeB>(), ...);
  }
};

using AllColumns = std::integer_sequence<int, 64, 80, 96, 112, 128, 192, 256>;

TEST_F(PtxProductTest, OfFloat16) { expect_products<__half, false>(AllColumns{}); }
TEST_F(PtxProductTest, OfFloat16Transposed) { expect_products<__half, true>(AllColumns{}); }
TEST_F(PtxProductTest, OfBFloat16) { expect_products<__nv_bfloat16, false>(AllColumns{}); }
TEST_F(PtxProductTest, OfBFloat16Transposed) { expect_products<__nv_bfloat16, true>(AllColumns{}); }

TEST_F(PtxProductTest, GroupsAreDoneInTheirOrder) {
  const std::vector<float> in = numbers(3 * 4096, 1);
  const auto out = out_of<float>(in, 2 * 4096, [&](const float* from, float* to) {
    multiply_in_groups<<<1, 128, 0, stream()>>>(from, from + 4096, to);
  });
  for (size_t n = 0; n < 2; ++n) {
    const auto expected = product(in.data(), in.data() + 4096 * (n + 1), std::vector<float>(4096, 0.0f), 64, 64);
    const auto begin = out.begin() + static_cast<std::ptrdiff_t>(4096 * n);
    expect_same(std::vector<float>(begin, begin + 4096), expected, n == 0 ? "first group" : "second group");
  }
}

// ---- warp groups

// Warp group 0 gives registers away; 1 and 2 get so many that each of their threads can hold `kHeld` words, and meet twice.
// out: of each of their threads, what it holds in sum, and the same of one of the other group.
constexpr int kHeld = 200, kRounds = 3;
__global__ void __launch_bounds__(384, 1) trade_registers(const uint32_t* in, int rounds, uint32_t* out) {
  __shared__ uint32_t sums[256];
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < 128) {
    ptx::setmaxnreg_dec<24>();
    return;
  }
  ptx::setmaxnreg_inc<240>();
  uint32_t held[kHeld];
#pragma unroll
  for (int i = 0; i < kHeld; ++i) held[i] = in[i] + thread;
  for (int n = 0; n < rounds; ++n) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) held[i] = held[i] * 3 + held[(i + 1) % kHeld];
  }
  uint32_t sum = 0;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) sum = sum * 5 + held[i];
  const int place = thread - 128, group = place / 128;
  sums[place] = sum;
  ptx::named_barrier_sync<256>(1);
  const uint32_t of_other = sums[(place + 128) % 256];
  ptx::named_barrier_sync<256>(1);
  sums[place] = of_other;
  ptx::named_barrier_sync<128>(2 + group);
  out[2 * place] = sum;
  out[2 * place + 1] = sums[128 * group + 127 - place % 128];
}

TEST_F(PtxWgmmaTest, WarpGroupsTradeRegistersAndMeet) {
  std::vector<uint32_t> in;
  for (uint32_t i = 0; i < kHeld; ++i) in.push_back(0x01000193u * (i + 1));
  const auto out = out_of<uint32_t>(in, 512, [&](const uint32_t* from, uint32_t* to) {
    trade_registers<<<1, 384, 0, stream()>>>(from, kRounds, to);
  });
  std::vector<uint32_t> sums;
  for (uint32_t thread = 128; thread < 384; ++thread) {
    std::vector<uint32_t> held;
    for (uint32_t word : in) held.push_back(word + thread);
    for (int n = 0; n < kRounds; ++n) {
      for (size_t i = 0; i < kHeld; ++i) held[i] = held[i] * 3 + held[(i + 1) % kHeld];
    }
    sums.push_back(0);
    for (uint32_t word : held) sums.back() = sums.back() * 5 + word;
  }
  for (size_t place = 0; place < 256; ++place) {
    EXPECT_EQ(out[2 * place], sums[place]) << place;
    EXPECT_EQ(out[2 * place + 1], sums[(place < 128 ? 255 : 127) - place % 128]) << place;
  }
}

// Two warp groups in turns: each of `rounds` times the second one triples what the first one has added to. In global memory:
// racecheck does not follow who arrives at a barrier without waiting.
__global__ void __launch_bounds__(256) add_and_triple(const uint32_t* in, int rounds, uint32_t* out) {
  volatile uint32_t* words = out;
  const int group = static_cast<int>(threadIdx.x) / 128, place = static_cast<int>(threadIdx.x) % 128;
  constexpr int kFirst = 1, kSecond = 2;  // whose turn is next
  if (group == 0) {
    words[127 - place] = 0;
    for (int n = 0; n < rounds; ++n) {
      if (n > 0) ptx::named_barrier_sync<256>(kFirst);
      words[127 - place] = words[127 - place] + in[place];
      ptx::named_barrier_arrive<256>(kSecond);
    }
  } else {
    for (int n = 0; n < rounds; ++n) {
      ptx::named_barrier_sync<256>(kSecond);
      words[place] = 3 * words[place];
      if (n + 1 < rounds) ptx::named_barrier_arrive<256>(kFirst);
    }
  }
}

TEST_F(PtxWgmmaTest, WarpGroupsTakeTurns) {
  std::vector<uint32_t> in;
  for (uint32_t i = 0; i < 128; ++i) in.push_back(1000 * i + 7);
  constexpr int kTimes = 9;
  const auto out = out_of<uint32_t>(
      in, 128, [&](const uint32_t* from, uint32_t* to) { add_and_triple<<<1, 256, 0, stream()>>>(from, kTimes, to); });
  for (size_t place = 0; place < 128; ++place) {
    uint32_t word = 0;
    for (int n = 0; n < kTimes; ++n) word = 3 * (word + in[127 - place]);
    EXPECT_EQ(out[place], word) << place;
  }
}

}  // namespace
}  // namespace dlattn::test
