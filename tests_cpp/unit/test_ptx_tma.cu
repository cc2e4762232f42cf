// Where the wrappers of ptx/mbarrier.cuh and ptx/tma.cuh leave what they say they do.
#include <gtest/gtest.h>

#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/wgmma/tensor_map.h"
#include "unit/ptx_test.h"

namespace dlattn::test {
namespace {

namespace ptx = cuda::ptx;
using ptx::smem_address;

constexpr uint16_t kUntouched = 0xFFFF;

// Where element (row, column) of a box is.
__host__ __device__ constexpr int in_box(int row, int column) {
  return 64 * row + (column / 8 ^ row % 8) * 8 + column % 8;
}

// ---- TMA

constexpr int kBoxRows = 16, kBoxSize = 64 * kBoxRows, kBoxBytes = 2 * kBoxSize;
constexpr int kBehind = 8 * 64;  // elements of shared memory behind a box

// Elements [batch, seq, head, dim] or [batch, head, seq, dim], with gaps between the rows.
struct Tensor4d {
  static constexpr int kBatch = 2, kSeq = 21, kHeads = 3, kDim = 72, kGap = 8;
  static constexpr int kRow = kDim + kGap, kSize = kBatch * kSeq * kHeads * kRow;
  bool heads_first;

  int seq_stride() const { return heads_first ? kRow : kRow * kHeads; }
  int head_stride() const { return heads_first ? kRow * kSeq : kRow; }
  static constexpr int kBatchStride = kRow * kHeads * kSeq;

  // Where an element is; -1: outside.
  int index(int dim, int seq, int head, int batch) const {
    const bool inside =
        dim >= 0 && dim < kDim && seq >= 0 && seq < kSeq && head >= 0 && head < kHeads && batch >= 0 && batch < kBatch;
    return inside ? batch * kBatchStride + head * head_stride() + seq * seq_stride() + dim : -1;
  }
  CUtensorMap map(const void* data) const {
    const DType dtype = heads_first ? DType::kBFloat16 : DType::kFloat16;
    return cuda::tensor_map(dtype, data, kDim, {kSeq, seq_stride()}, {kHeads, head_stride()}, {kBatch, kBatchStride},
                            kBoxRows);
  }
};

struct Box {
  int dim, seq, head, batch;
};
std::string text_of(const Box& box) {
  std::ostringstream text;
  text << "box at dim " << box.dim << ", seq " << box.seq << ", head " << box.head << ", batch " << box.batch;
  return text.str();
}

// Within the tensor, over its ends, and beyond them.
const Box kBoxes[] = {{0, 2, 1, 1},       {0, 15, 2, 0},  {0, -3, 1, 1},  {64, 3, 2, 0}, {64, 20, 0, 1},
                      {-8, 4, 1, 0},      {-8, -9, 0, 0}, {128, 0, 1, 1}, {0, 21, 2, 0}, {0, -16, 1, 1},
                      {0, 1 << 20, 0, 0}, {0, 3, 3, 0},   {0, 3, -1, 1},  {0, 3, 1, 2},  {0, 3, 1, -1}};

// out: the box and what is behind it.
__global__ void load_box(const __grid_constant__ CUtensorMap map, Box at, uint16_t* out) {
  __shared__ __align__(1024) uint16_t rows[kBoxSize + kBehind];
  __shared__ __align__(8) uint64_t full;
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < kBoxSize + kBehind; i += 32) rows[i] = kUntouched;
  ptx::fence_async_shared();
  if (thread == 0) {
    ptx::tma_prefetch_map(&map);
    ptx::mbarrier_init(smem_address(&full), 1);
    ptx::mbarrier_fence_init();
  }
  __syncthreads();
  if (thread == 0) {
    ptx::mbarrier_arrive_expect(smem_address(&full), kBoxBytes);
    ptx::tma_load_4d(smem_address(rows), &map, smem_address(&full), at.dim, at.seq, at.head, at.batch);
  }
  ptx::mbarrier_wait(smem_address(&full), 0);
  for (int i = thread; i < kBoxSize + kBehind; i += 32) out[i] = rows[i];
}

// Elements are 1000 + 64 row + column and go to `at`; then, from the same shared memory, 10000 more each to the other batch.
__global__ void store_boxes(const __grid_constant__ CUtensorMap map, Box at) {
  __shared__ __align__(1024) uint16_t rows[kBoxSize];
  const int thread = static_cast<int>(threadIdx.x);
  for (int n = 0; n < 2; ++n) {
    if (thread == 0) ptx::bulk_wait_read<0>();
    __syncthreads();
    for (int i = thread; i < kBoxSize; i += 32) {
      rows[in_box(i / 64, i % 64)] = static_cast<uint16_t>(1000 + 10000 * n + i);
    }
    ptx::fence_async_shared();
    __syncthreads();
    if (thread == 0) {
      ptx::tma_store_4d(&map, smem_address(rows), at.dim, at.seq, at.head, at.batch ^ n);
      ptx::bulk_commit();
    }
  }
  if (thread == 0) ptx::bulk_wait<0>();
}

constexpr int kPlaces = 2;  // of a ring

// The boxes of a head, one below the other: warp 0 loads, warp 1 reads.
__global__ void load_through_ring(const __grid_constant__ CUtensorMap map, int num_boxes, uint16_t* out) {
  __shared__ __align__(1024) uint16_t rows[kPlaces][kBoxSize];
  __shared__ __align__(8) uint64_t full[kPlaces], empty[kPlaces];
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    for (int place = 0; place < kPlaces; ++place) {
      ptx::mbarrier_init(smem_address(&full[place]), 1);
      ptx::mbarrier_init(smem_address(&empty[place]), 32);
    }
    ptx::mbarrier_fence_init();
  }
  __syncthreads();
  for (int n = 0; n < num_boxes; ++n) {
    const int place = n % kPlaces;
    const uint32_t parity = n / kPlaces % 2;
    if (thread == 0) {
      ptx::mbarrier_wait(smem_address(&empty[place]), parity ^ 1);
      ptx::mbarrier_arrive_expect(smem_address(&full[place]), kBoxBytes);
      ptx::tma_load_4d(smem_address(rows[place]), &map, smem_address(&full[place]), 0, n * kBoxRows, 1, 1);
    } else if (thread >= 32) {
      ptx::mbarrier_wait(smem_address(&full[place]), parity);
      for (int i = thread - 32; i < kBoxSize; i += 32) out[n * kBoxSize + i] = rows[place][i];
      ptx::mbarrier_arrive(smem_address(&empty[place]));
    }
  }
}

class PtxTmaTest : public PtxTest<cuda::Family::kWgmma> {
 protected:
  // Each element has a number of its own, the gaps have none.
  static std::vector<uint16_t> numbered(const Tensor4d& tensor) {
    std::vector<uint16_t> elements(Tensor4d::kSize, kUntouched);
    uint16_t number = 0;
    for (int batch = 0; batch < Tensor4d::kBatch; ++batch) {
      for (int head = 0; head < Tensor4d::kHeads; ++head) {
        for (int seq = 0; seq < Tensor4d::kSeq; ++seq) {
          for (int dim = 0; dim < Tensor4d::kDim; ++dim) {
            elements[static_cast<size_t>(tensor.index(dim, seq, head, batch))] = ++number;
          }
        }
      }
    }
    return elements;
  }

  void expect_loads(const Tensor4d& tensor) {
    const std::vector<uint16_t> elements = numbered(tensor);
    for (const Box& box : kBoxes) {
      const auto out = out_of<uint16_t>(elements, kBoxSize + kBehind, [&](const uint16_t* from, uint16_t* to) {
        load_box<<<1, 32, 0, stream()>>>(tensor.map(from), box, to);
      });
      std::vector<uint16_t> expected(kBoxSize + kBehind, kUntouched);
      for (int row = 0; row < kBoxRows; ++row) {
        for (int column = 0; column < 64; ++column) {
          const int at = tensor.index(box.dim + column, box.seq + row, box.head, box.batch);
          expected[static_cast<size_t>(in_box(row, column))] = at < 0 ? 0 : elements[static_cast<size_t>(at)];
        }
      }
      expect_same(out, expected, text_of(box));
    }
  }

  void expect_stores(const Tensor4d& tensor) {
    for (const Box& box : kBoxes) {
      if (box.dim < 0 || box.seq < 0 || box.head < 0 || box.batch < 0) continue;  // an illegal instruction
      const auto out = out_of<uint16_t>(std::vector<uint16_t>{0}, Tensor4d::kSize, [&](const uint16_t*, uint16_t* to) {
        store_boxes<<<1, 32, 0, stream()>>>(tensor.map(to), box);
      });
      std::vector<uint16_t> expected(Tensor4d::kSize, kUntouched);
      for (int i = 0; i < kBoxSize; ++i) {
        for (int n = 0; n < 2; ++n) {
          const int batch = box.batch ^ n;
          const int at = tensor.index(box.dim + i % 64, box.seq + i / 64, box.head, batch);
          if (at >= 0) expected[static_cast<size_t>(at)] = static_cast<uint16_t>(1000 + 10000 * n + i);
        }
      }
      expect_same(out, expected, text_of(box));
    }
  }
};

TEST_F(PtxTmaTest, LoadsSwizzledRowsAndZeros) { expect_loads({false}); }
TEST_F(PtxTmaTest, LoadsOfHeadsFirst) { expect_loads({true}); }
TEST_F(PtxTmaTest, StoresWhatIsInside) { expect_stores({false}); }
TEST_F(PtxTmaTest, StoresOfHeadsFirst) { expect_stores({true}); }

TEST_F(PtxTmaTest, RingOfTwo) {
  constexpr int kRounds = 9;
  constexpr int kSeq = kRounds * kBoxRows, kSize = 2 * 2 * kSeq * 64;
  std::vector<uint16_t> elements;
  for (int i = 0; i < kSize; ++i) elements.push_back(static_cast<uint16_t>(i));
  const auto out = out_of<uint16_t>(elements, kRounds * kBoxSize, [&](const uint16_t* from, uint16_t* to) {
    const CUtensorMap map =
        cuda::tensor_map(DType::kFloat16, from, 64, {kSeq, 128}, {2, 64}, {2, kSeq * 128}, kBoxRows);
    load_through_ring<<<1, 64, 0, stream()>>>(map, kRounds, to);
  });
  std::vector<uint16_t> expected(kRounds * kBoxSize);
  for (int row = 0; row < kSeq; ++row) {
    for (int column = 0; column < 64; ++column) {
      const int at = row / kBoxRows * kBoxSize + in_box(row % kBoxRows, column);
      expected[static_cast<size_t>(at)] = elements[static_cast<size_t>(kSeq * 128 + row * 128 + 64 + column)];
    }
  }
  expect_same(out, expected, "ring");
}

// ---- mbarrier

using PtxMbarrierTest = PtxTest<cuda::Family::kWgmma>;

// In round n lane l of warp 0 writes 32 n + l, and lane 31 - l of warp 1 reads it.
__global__ void pass_through_ring(int rounds, uint32_t* out) {
  __shared__ uint32_t words[kPlaces][32];
  __shared__ __align__(8) uint64_t full[kPlaces], empty[kPlaces];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  if (thread == 0) {
    for (int place = 0; place < kPlaces; ++place) {
      ptx::mbarrier_init(smem_address(&full[place]), 32);
      ptx::mbarrier_init(smem_address(&empty[place]), 32);
    }
    ptx::mbarrier_fence_init();
  }
  __syncthreads();
  for (int n = 0; n < rounds; ++n) {
    const int place = n % kPlaces;
    const uint32_t parity = n / kPlaces % 2;
    if (thread < 32) {
      ptx::mbarrier_wait(smem_address(&empty[place]), parity ^ 1);
      words[place][lane] = static_cast<uint32_t>(32 * n + lane);
      ptx::mbarrier_arrive(smem_address(&full[place]));
    } else {
      ptx::mbarrier_wait(smem_address(&full[place]), parity);
      out[32 * n + lane] = words[place][31 - lane];
      ptx::mbarrier_arrive(smem_address(&empty[place]));
    }
  }
}

TEST_F(PtxMbarrierTest, HandsOnARingOfTwo) {
  constexpr int kRounds = 101;
  const auto out = out_of<uint32_t>(std::vector<int>{0}, 32 * kRounds, [&](const int*, uint32_t* to) {
    pass_through_ring<<<1, 64, 0, stream()>>>(kRounds, to);
  });
  std::vector<uint32_t> expected;
  for (uint32_t i = 0; i < 32 * kRounds; ++i) expected.push_back(i / 32 * 32 + 31 - i % 32);
  expect_same(out, expected, "ring");
}

}  // namespace
}  // namespace dlattn::test
