// attention, attn_prefill and attn_decode against the definition in double.
#include <cmath>

#include "dlattn/dlattn.h"
#include "ops/attention_problem.h"
#include "support/compare.h"
#include "support/cpu_test.h"

namespace dlattn::test {
namespace {

void expect_reference(DenseProblem& problem) {
  const AttentionCase& c = problem.c;
  for (int64_t b = 0; b < c.batch_size; ++b) {
    const Sequence s = problem.sequence(b);
    const Reference reference(s);
    for (int64_t i = 0; i < c.seqlen_q; ++i) {
      for (int64_t h = 0; h < c.num_heads; ++h) {
        const Row row = reference.row(i, h);
        ASSERT_TRUE(near(problem.lse.at(b, h, i), row.lse, lse_bound(c.dtype))) << "lse " << b << "," << h << "," << i;
        for (int64_t d = 0; d < c.head_dim_v; ++d) {
          ASSERT_TRUE(near(problem.out.at(b, i, h, d), row.out[static_cast<size_t>(d)], out_bound(c.dtype)))
              << "out " << b << "," << i << "," << h << "," << d;
        }
      }
    }
  }
}

using AttentionTest = CpuTestWithParam<AttentionCase>;

TEST_P(AttentionTest, MatchesTheDefinition) {
  DenseProblem problem(GetParam());
  const AttentionParams p = problem.params();
  expect_same_bits(
      [&] {
        problem.restore();
        problem.run(p);
      },
      [&] { return bytes_of(problem.outputs()); });
  expect_reference(problem);
  problem.out.expect_gaps_untouched("out");
  problem.lse.expect_gaps_untouched("lse");
}

INSTANTIATE_TEST_SUITE_P(Lengths, AttentionTest, ::testing::ValuesIn(length_cases()));
INSTANTIATE_TEST_SUITE_P(Heads, AttentionTest, ::testing::ValuesIn(head_cases()));
INSTANTIATE_TEST_SUITE_P(Options, AttentionTest, ::testing::ValuesIn(option_cases()));
INSTANTIATE_TEST_SUITE_P(Layouts, AttentionTest, ::testing::ValuesIn(layout_cases()));

class AttentionRulesTest : public CpuTest {};

TEST_F(AttentionRulesTest, LseIsOptional) {
  AttentionCase c;
  DenseProblem problem(c);
  AttentionParams p = problem.params();
  attention(p);
  const std::vector<unsigned char> with = problem.out.bytes();
  problem.out.restore(problem.clean_out);
  p.lse = nullptr;
  attention(p);
  EXPECT_TRUE(problem.out.bytes() == with);
}

TEST_F(AttentionRulesTest, VisibleNanPropagatesAndMaskedNanDoesNot) {
  for (int64_t seqlen_q : {1, 40}) {
    AttentionCase c;
    c.seqlen_q = seqlen_q, c.seqlen_k = 200, c.mask = MaskKind::kBool2D;
    DenseProblem problem(c);
    problem.mask.fill(1.0);
    problem.mask.set(0.0, 0, 150);
    for (int64_t d = 0; d < c.head_dim; ++d) {
      problem.k.set(NAN, 0, 150, 0, d);  // hidden by the mask
      problem.v.set(NAN, 0, 150, 0, d);
      problem.k.set(NAN, 1, 120, 1, d);  // visible
    }
    attention(problem.params());
    for (int64_t i = 0; i < seqlen_q; ++i) {
      for (int64_t h = 0; h < c.num_heads; ++h) {
        EXPECT_FALSE(std::isnan(problem.out.at(0, i, h, 3))) << i << "," << h;
        EXPECT_EQ(std::isnan(problem.out.at(1, i, h, 3)), h >= 2) << i << "," << h;
        EXPECT_EQ(std::isnan(problem.lse.at(1, h, i)), h >= 2) << i << "," << h;
      }
    }
  }
}

TEST_F(AttentionRulesTest, BroadcastAndReversedInputs) {
  AttentionCase c;
  c.batch_size = 3, c.seqlen_q = 20, c.seqlen_k = 40;
  DenseProblem problem(c);
  AttentionParams p = problem.params();
  p.k_stride_batch = 0;              // one sequence of keys for all
  p.v_stride_seq = -p.v_stride_seq;  // values from the last to the first
  p.v = static_cast<const float*>(p.v) - p.v_stride_seq * (c.seqlen_k - 1);
  attention(p);
  for (int64_t b = 0; b < c.batch_size; ++b) {
    Sequence s = problem.sequence(b);
    s.k = [&](int64_t j, int64_t h, int64_t d) { return problem.k.at(0, j, h, d); };
    s.v = [&](int64_t j, int64_t h, int64_t d) { return problem.v.at(b, c.seqlen_k - 1 - j, h, d); };
    const Row row = Reference(s).row(11, 2);
    for (int64_t d = 0; d < c.head_dim_v; ++d) {
      EXPECT_TRUE(near(problem.out.at(b, 11, 2, d), row.out[static_cast<size_t>(d)], out_bound(c.dtype)));
    }
  }
}

TEST_F(AttentionRulesTest, LargeScoresStayFinite) {
  AttentionCase c;
  c.seqlen_q = 33, c.seqlen_k = 65, c.scale = 3.0e4f;
  DenseProblem problem(c);
  attention(problem.params());
  for (int64_t i = 0; i < c.seqlen_q; ++i) EXPECT_TRUE(std::isfinite(problem.out.at(0, i, 0, 0)));
}

TEST_F(AttentionRulesTest, ExplainNamesTheKernelWithoutData) {
  AttentionParams p;
  p.batch_size = 1, p.seqlen_q = 1, p.seqlen_k = 9, p.num_heads = p.num_kv_heads = 1, p.head_dim = p.head_dim_v = 8;
  const Explanation decode = explain(p);
  EXPECT_TRUE(decode.supported);
  EXPECT_EQ(decode.backend, "cpu");
  EXPECT_FALSE(decode.kernel.empty());
  EXPECT_EQ(decode.kernel, explain(p, AttentionOp::kDecode).kernel);
  EXPECT_EQ(attn_workspace_size(p), 0u);
  p.head_dim = 300;
  EXPECT_THROW(explain(p), InvalidArgument);
}

}  // namespace
}  // namespace dlattn::test
