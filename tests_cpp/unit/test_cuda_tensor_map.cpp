// What TMA can express, and what a tensor map is made of. All but the last needs no GPU.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <string>

#include "cuda/device.h"
#include "cuda/problem.h"
#include "cuda/wgmma/tensor_axes.h"
#include "cuda/wgmma/tensor_map.h"
#include "dlattn/error.h"
#include "unit/select_calls.h"

namespace dlattn::cuda {
namespace {

alignas(16) const char kMemory[32] = {};

const TensorMapAxes kFits = {{100, 1024}, {8, 128}, {3, 102400}};

void expect_fits(bool expected, const TensorMapAxes& axes, const void* base = kMemory, int64_t head_dim = 128) {
  for (DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    EXPECT_EQ(tensor_map_fits(dtype, base, head_dim, axes), expected)
        << axes.seq.size << " by " << axes.seq.stride << ", " << axes.head.size << " by " << axes.head.stride << ", "
        << axes.batch.size << " by " << axes.batch.stride;
  }
}

TEST(TensorMapFitsTest, TheBaseIsAligned) {
  expect_fits(true, kFits);
  expect_fits(true, kFits, nullptr);  // it comes later
  expect_fits(true, kFits, kMemory + 16);
  for (int bytes : {1, 2, 4, 8, 12, 15}) expect_fits(false, kFits, kMemory + bytes);
}

TEST(TensorMapFitsTest, Strides) {
  constexpr int64_t kEnd = INT64_C(1) << 39;  // elements of 2 bytes
  for (TensorMapAxis TensorMapAxes::* axis : {&TensorMapAxes::seq, &TensorMapAxes::head, &TensorMapAxes::batch}) {
    TensorMapAxes axes = kFits;
    for (int64_t stride : {INT64_C(0), INT64_C(8), INT64_C(24), kEnd - 8}) {
      (axes.*axis).stride = stride;
      expect_fits(true, axes);
    }
    for (int64_t stride : {INT64_C(1), INT64_C(4), INT64_C(12), INT64_C(380), INT64_C(-8), INT64_C(-1024), kEnd,
                           kEnd + 8, INT64_C(1) << 62, INT64_MIN, INT64_MAX}) {
      (axes.*axis).size = 2, (axes.*axis).stride = stride;
      expect_fits(false, axes);
      (axes.*axis).size = 1;  // does not count
      expect_fits(true, axes);
    }
  }
}

TEST(TensorMapFitsTest, Sizes) {
  constexpr int64_t kMost = INT32_MAX;
  for (TensorMapAxis TensorMapAxes::* axis : {&TensorMapAxes::seq, &TensorMapAxes::head, &TensorMapAxes::batch}) {
    TensorMapAxes axes = kFits;
    for (int64_t size : {INT64_C(1), INT64_C(2), kMost}) {
      (axes.*axis).size = size;
      expect_fits(true, axes);
    }
    for (int64_t size : {INT64_C(0), INT64_C(-1), kMost + 1, INT64_C(1) << 40}) {
      (axes.*axis).size = size;
      expect_fits(false, axes);
    }
  }
  for (int64_t head_dim : {1, 8, 33, 256}) expect_fits(true, kFits, kMemory, head_dim);
  for (int64_t head_dim : {0, -8}) expect_fits(false, kFits, kMemory, head_dim);
}

TEST(TensorMapFitsTest, FourByteElements) {
  const TensorMapAxes axes = {{100, 4}, {1, 0}, {1, 0}};
  EXPECT_TRUE(tensor_map_fits(DType::kFloat32, kMemory, 8, axes));
  EXPECT_FALSE(tensor_map_fits(DType::kBFloat16, kMemory, 8, axes));
}

void expect_axes(const TensorMapAxes& axes, const TensorMapAxes& expected) {
  const auto expect_axis = [](TensorMapAxis axis, TensorMapAxis wanted, const char* name) {
    EXPECT_EQ(axis.size, wanted.size) << name;
    EXPECT_EQ(axis.stride, wanted.stride) << name;
  };
  expect_axis(axes.seq, expected.seq, "seq");
  expect_axis(axes.head, expected.head, "head");
  expect_axis(axes.batch, expected.batch, "batch");
}

TEST(TensorAxesTest, Dense) {
  AttentionParams p = dense(DType::kFloat16, 3, 50, 70, 8, 2, 64, 32);
  p.q_stride_batch = 1, p.q_stride_seq = 2, p.q_stride_head = 3;
  p.k_stride_batch = 4, p.k_stride_seq = 5, p.k_stride_head = 6;
  p.v_stride_batch = 7, p.v_stride_seq = 8, p.v_stride_head = 9;
  p.out_stride_batch = 10, p.out_stride_seq = 11, p.out_stride_head = 12;
  const AttentionProblem problem = make_problem(p);
  expect_axes(q_axes(problem), {{50, 2}, {8, 3}, {3, 1}});
  expect_axes(k_axes(problem), {{70, 5}, {2, 6}, {3, 4}});
  expect_axes(v_axes(problem), {{70, 8}, {2, 9}, {3, 7}});
  expect_axes(out_axes(problem), {{50, 11}, {8, 12}, {3, 10}});
}

TEST(TensorAxesTest, Ragged) {
  VarlenAttentionParams p;
  p.batch_size = 3, p.total_q = 50, p.total_k = 70, p.num_heads = 8, p.num_kv_heads = 2;
  p.q_stride_token = 2, p.q_stride_head = 3, p.k_stride_token = 5, p.k_stride_head = 6;
  p.v_stride_token = 8, p.v_stride_head = 9, p.out_stride_token = 11, p.out_stride_head = 12;
  const AttentionProblem problem = make_problem(p);
  expect_axes(q_axes(problem), {{50, 2}, {8, 3}, {1, 0}});
  expect_axes(k_axes(problem), {{70, 5}, {2, 6}, {1, 0}});
  expect_axes(v_axes(problem), {{70, 8}, {2, 9}, {1, 0}});
  expect_axes(out_axes(problem), {{50, 11}, {8, 12}, {1, 0}});
}

TEST(TensorAxesTest, Paged) {
  PagedAttentionParams p;
  p.batch_size = 3, p.seqlen_q = 50, p.num_heads = 8, p.num_kv_heads = 2, p.num_pages = 40, p.page_size = 16;
  p.max_pages = 5;
  p.q_stride_batch = 1, p.q_stride_seq = 2, p.q_stride_head = 3;
  p.k_stride_page = 4, p.k_stride_seq = 5, p.k_stride_head = 6;
  p.v_stride_page = 7, p.v_stride_seq = 8, p.v_stride_head = 9;
  AttentionProblem problem = make_problem(p);
  expect_axes(q_axes(problem), {{50, 2}, {8, 3}, {3, 1}});
  expect_axes(k_axes(problem), {{16, 5}, {2, 6}, {40, 4}});
  expect_axes(v_axes(problem), {{16, 8}, {2, 9}, {40, 7}});
  p.seqlen_q = 0, p.total_q = 90;
  problem = make_problem(p);
  expect_axes(q_axes(problem), {{90, 2}, {8, 3}, {1, 1}});
}

std::string cuda_error(DType dtype, const void* base, const TensorMapAxes& axes, int box_rows) {
  try {
    tensor_map(dtype, base, 128, axes, box_rows);
  } catch (const CudaError& error) {
    return error.what();
  }
  return "";
}

TEST(TensorMapTest, RefusesWhatDoesNotFit) {
  const std::string start = "TMA cannot express a bfloat16 tensor at ";
  EXPECT_EQ(cuda_error(DType::kBFloat16, nullptr, kFits, 64),
            start + "0, head_dim 128, seq 100 by 1024, head 8 by 128, batch 3 by 102400, boxes of 64 rows");
  EXPECT_EQ(cuda_error(DType::kBFloat16, kMemory + 8, kFits, 64).rfind(start, 0), 0u);
  EXPECT_EQ(cuda_error(DType::kBFloat16, kMemory, {{100, -8}, {8, 128}, {1, 0}}, 64).rfind(start, 0), 0u);
  EXPECT_EQ(cuda_error(DType::kBFloat16, kMemory, kFits, 0).rfind(start, 0), 0u);
  EXPECT_EQ(cuda_error(DType::kBFloat16, kMemory, kFits, 257).rfind(start, 0), 0u);
  EXPECT_EQ(cuda_error(DType::kFloat32, kMemory, kFits, 64).rfind("TMA cannot express a float32 tensor at ", 0), 0u);
}

// Where there is a driver, it makes the map of any memory; else the error names what is missing.
TEST(TensorMapTest, IsMadeByTheDriver) {
  if (cudaFree(nullptr) != cudaSuccess) cudaGetLastError();  // a context, which the driver asks for
  for (const TensorMapAxes& axes : {kFits, TensorMapAxes{{1, -3}, {1, 5}, {1, 0}}}) {
    for (int box_rows : {8, 64, 128, 256}) {
      const std::string error = cuda_error(DType::kBFloat16, kMemory, axes, box_rows);
      if (device_count() > 0) {
        EXPECT_EQ(error, "");
      } else if (!error.empty()) {
        EXPECT_NE(error.find("cuTensorMapEncodeTiled"), std::string::npos) << error;
        EXPECT_EQ(error.find("cuTensorMapEncodeTiled of "), std::string::npos) << error;
      }
    }
  }
}

}  // namespace
}  // namespace dlattn::cuda
