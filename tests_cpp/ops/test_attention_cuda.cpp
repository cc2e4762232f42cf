// Dense attention on every kernel of the CUDA backend against the CPU backend.
#include <cmath>

#include "ops/attention_problem.h"
#include "ops/cuda_attention_cases.h"
#include "ops/cuda_wgmma_cases.h"
#include "ops/kernel_rows.h"
#include "ops/small_cases.h"

namespace dlattn::test {
namespace {

[[maybe_unused]] const ::testing::Environment* const every_row_is_reached =
    ::testing::AddGlobalTestEnvironment(new EveryRowIsReached);  // GoogleTest owns it

using AttentionCudaTest = CudaTestWithParam<AttentionCase>;

TEST_P(AttentionCudaTest, EveryRowMatchesTheCpu) {
  DenseProblem problem(GetParam());
  expect_every_row(problem, stream());
}

INSTANTIATE_TEST_SUITE_P(Small, AttentionCudaTest, ::testing::ValuesIn(small_dense_cases()));
INSTANTIATE_TEST_SUITE_P(Lengths, AttentionCudaTest, ::testing::ValuesIn(length_cases()));
INSTANTIATE_TEST_SUITE_P(Heads, AttentionCudaTest, ::testing::ValuesIn(head_cases()));
INSTANTIATE_TEST_SUITE_P(Options, AttentionCudaTest, ::testing::ValuesIn(option_cases()));
INSTANTIATE_TEST_SUITE_P(Layouts, AttentionCudaTest, ::testing::ValuesIn(layout_cases()));
INSTANTIATE_TEST_SUITE_P(Wide, AttentionCudaTest, ::testing::ValuesIn(wide_cases()));
INSTANTIATE_TEST_SUITE_P(Unaligned, AttentionCudaTest, ::testing::ValuesIn(unaligned_cases()));
INSTANTIATE_TEST_SUITE_P(Groups, AttentionCudaTest, ::testing::ValuesIn(group_cases()));
INSTANTIATE_TEST_SUITE_P(ManyKeys, AttentionCudaTest, ::testing::ValuesIn(many_keys_cases()));
INSTANTIATE_TEST_SUITE_P(ManyQueries, AttentionCudaTest, ::testing::ValuesIn(many_queries_cases()));
INSTANTIATE_TEST_SUITE_P(Edges, AttentionCudaTest, ::testing::ValuesIn(edge_cases()));
INSTANTIATE_TEST_SUITE_P(Grouped, AttentionCudaTest, ::testing::ValuesIn(grouped_cases()));
INSTANTIATE_TEST_SUITE_P(GroupedSplit, AttentionCudaTest, ::testing::ValuesIn(grouped_split_cases()));
INSTANTIATE_TEST_SUITE_P(GroupedPrefill, AttentionCudaTest, ::testing::ValuesIn(grouped_prefill_cases()));
INSTANTIATE_TEST_SUITE_P(ManyItems, AttentionCudaTest, ::testing::ValuesIn(many_items_cases()));

INSTANTIATE_TEST_SUITE_P(WgmmaTiles, AttentionCudaTest, ::testing::ValuesIn(wgmma_tile_cases()));
INSTANTIATE_TEST_SUITE_P(WgmmaSmallHeads, AttentionCudaTest, ::testing::ValuesIn(wgmma_small_head_cases()));
INSTANTIATE_TEST_SUITE_P(WgmmaLengths, AttentionCudaTest, ::testing::ValuesIn(wgmma_length_cases()));
INSTANTIATE_TEST_SUITE_P(WgmmaSplit, AttentionCudaTest, ::testing::ValuesIn(wgmma_split_cases()));
INSTANTIATE_TEST_SUITE_P(ManyWgmmaItems, AttentionCudaTest, ::testing::ValuesIn(wgmma_items_cases()));

// One test a row, so that the rows which this device lacks are counted.
class KernelRowTest : public CudaTestWithParam<int> {};

TEST_P(KernelRowTest, TakesAPlainCall) {
  const cuda::KernelRow& row = cuda::kernel_table()[static_cast<size_t>(GetParam())];
  const std::string why = why_device_cannot_run(row);
  if (!why.empty()) GTEST_SKIP() << why;
  for (DType dtype : kFloatTypes) {
    AttentionParams p;
    p.device.type = DeviceType::kCUDA, p.dtype = dtype;
    p.batch_size = 1, p.seqlen_q = 4, p.seqlen_k = 100, p.num_heads = p.num_kv_heads = 1;
    p.head_dim = p.head_dim_v = row.max_head_dim;
    EXPECT_EQ(cuda::why_not(GetParam(), p).empty(), row.takes(dtype)) << cuda::why_not(GetParam(), p);
    p.head_dim = row.max_head_dim + 1;
    EXPECT_FALSE(cuda::why_not(GetParam(), p).empty());
  }
}

INSTANTIATE_TEST_SUITE_P(Rows, KernelRowTest, ::testing::Range(0, static_cast<int>(cuda::kernel_table().size())),
                         [](const auto& row) { return cuda::kernel_table()[static_cast<size_t>(row.param)].name; });

// Rules on every row: `check(problem)` looks at the outputs.
class AttentionCudaRulesTest : public CudaTest {
 protected:
  template <typename Check>
  void on_every_row(DenseProblem& problem, const AttentionParams& host_params, Check&& check) {
    DeviceTensors device(problem.tensors(), stream());
    const AttentionParams params = device.on_device(host_params);
    for (int row : rows_for(params)) {
      SCOPED_TRACE(cuda::kernel_table()[static_cast<size_t>(row)].name);
      run_row_on_device(problem, device, stream(), row, params);
      check(problem);
    }
  }
};

TEST_F(AttentionCudaRulesTest, LseIsOptional) {
  for (int64_t seqlen_k : {33, 3000}) {
    AttentionCase c;
    c.seqlen_k = seqlen_k;
    DenseProblem problem(c);
    DenseProblem oracle = problem;
    oracle.run(oracle.params());
    AttentionParams p = problem.params();
    p.lse = nullptr;
    on_every_row(problem, p, [&](DenseProblem& got) {
      expect_near("out", got.out, oracle.out, kernel_bound(c.dtype, c.scale, c.head_dim));
      EXPECT_TRUE(got.lse.bytes() == got.clean_lse);
    });
  }
}

TEST_F(AttentionCudaRulesTest, VisibleNanPropagatesAndAHiddenKeyDoesNot) {
  for (DType dtype : kFloatTypes) {
    for (int64_t seqlen_q : {1, 40}) {
      for (int64_t seqlen_k : {200, 3000}) {  // 3000: in one split of many
        AttentionCase c;
        c.dtype = dtype, c.seqlen_q = seqlen_q, c.seqlen_k = seqlen_k, c.mask = MaskKind::kBool2D;
        DenseProblem problem(c);
        problem.mask.fill(1.0);
        problem.mask.set(0.0, 0, 150);
        for (int64_t d = 0; d < c.head_dim; ++d) {
          problem.k.set(NAN, 0, 150, 0, d);  // hidden by the mask
          problem.k.set(NAN, 1, 120, 1, d);  // visible
        }
        for (int64_t d = 0; d < c.head_dim_v; ++d) problem.v.set(d == 3 ? NAN : 1.0, 1, 120, 0, d);
        on_every_row(problem, problem.params(), [&](const DenseProblem& got) {
          for (int64_t i = 0; i < seqlen_q; ++i) {
            for (int64_t h = 0; h < c.num_heads; ++h) {
              ASSERT_FALSE(std::isnan(got.out.at(0, i, h, 3))) << i << "," << h;
              ASSERT_FALSE(std::isnan(got.lse.at(0, h, i))) << i << "," << h;
              ASSERT_TRUE(std::isnan(got.out.at(1, i, h, 3))) << i << "," << h;  // from v, or from k
              ASSERT_EQ(std::isnan(got.out.at(1, i, h, 4)), h >= 2) << i << "," << h;
              ASSERT_EQ(std::isnan(got.lse.at(1, h, i)), h >= 2) << i << "," << h;
            }
          }
        });
      }
    }
  }
}

TEST_F(AttentionCudaRulesTest, BroadcastAndReversedInputs) {
  const auto reversed = [](const void* first, int64_t stride, const DenseProblem& of) {
    return static_cast<const char*>(first) + stride * (of.c.seqlen_k - 1) * item_size(of.c.dtype);
  };
  for (DType dtype : kFloatTypes) {
    for (int64_t seqlen_q : {1, 20}) {
      for (int twist = 0; twist < 3; ++twist) {
        AttentionCase c;
        c.dtype = dtype, c.batch_size = 3, c.seqlen_q = seqlen_q, c.seqlen_k = 400;
        DenseProblem problem(c);
        const auto twisted = [&](DenseProblem& of) {
          AttentionParams p = of.params();
          if (twist == 0) p.k_stride_batch = 0;  // one sequence of keys for all
          if (twist == 1) p.v_stride_seq = 0;    // one value for all keys of a sequence
          if (twist == 2) p.k = reversed(p.k, p.k_stride_seq, of), p.k_stride_seq = -p.k_stride_seq;
          if (twist == 1) return p;
          p.v = reversed(p.v, p.v_stride_seq, of);
          p.v_stride_seq = -p.v_stride_seq;  // values from the last to the first
          return p;
        };
        DenseProblem oracle = as_float32(problem);
        oracle.run(twisted(oracle));
        on_every_row(problem, twisted(problem), [&](DenseProblem& got) { expect_result(got, oracle); });
      }
    }
  }
}

TEST_F(AttentionCudaRulesTest, LargeScoresStayFinite) {
  for (DType dtype : kFloatTypes) {
    for (int64_t seqlen_q : {1, 33}) {
      AttentionCase c;
      c.dtype = dtype, c.seqlen_q = seqlen_q, c.seqlen_k = 600, c.scale = 3.0e4f;
      DenseProblem problem(c);
      on_every_row(problem, problem.params(), [&](const DenseProblem& got) {
        for (int64_t i = 0; i < seqlen_q; ++i) {
          for (int64_t h = 0; h < c.num_heads; ++h) {
            ASSERT_TRUE(std::isfinite(got.out.at(0, i, h, 0))) << i << "," << h;
            ASSERT_TRUE(std::isfinite(got.lse.at(0, h, i))) << i << "," << h;
          }
        }
      });
    }
  }
}

}  // namespace
}  // namespace dlattn::test
