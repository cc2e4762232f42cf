// merge_attention_states against the definition in double, and against attention over all keys.
#include "ops/merge_problem.h"
#include "support/cpu_test.h"

namespace dlattn::test {
namespace {

using MergeTest = CpuTestWithParam<MergeCase>;

TEST_P(MergeTest, MatchesTheDefinition) {
  MergeProblem problem(GetParam());
  problem.run(problem.params());
  problem.expect_definition();
}

INSTANTIATE_TEST_SUITE_P(States, MergeTest, ::testing::ValuesIn(merge_cases()));

class MergeRulesTest : public CpuTest {};

TEST_F(MergeRulesTest, HalvesOfTheKeysMakeTheWhole) {
  std::mt19937 random(1);
  constexpr int64_t kBatch = 2, kLen = 3, kHeads = 4, kDim = 20, kKeys = 90;
  Tensor q(DType::kFloat32, {kBatch, kLen, kHeads, kDim}), k(DType::kFloat32, {kBatch, kKeys, kHeads, kDim});
  Tensor v(DType::kFloat32, {kBatch, kKeys, kHeads, kDim});
  q.fill_random(random), k.fill_random(random), v.fill_random(random);
  const auto attend = [&](int64_t first, int64_t count, Tensor& out, Tensor& lse) {
    AttentionTensors t;
    t.q = q.view(), t.k = k.view(), t.v = v.view(), t.out = out.view(), t.lse = lse.view();
    t.k.data = static_cast<float*>(t.k.data) + first * k.stride(1);
    t.v.data = static_cast<float*>(t.v.data) + first * v.stride(1);
    t.k.shape[1] = t.v.shape[1] = count;
    attention(make_attention_params("attention", t));
  };
  std::vector<Tensor> outs(4, Tensor(DType::kFloat32, {kBatch, kLen, kHeads, kDim}));
  std::vector<Tensor> lses(4, Tensor(DType::kFloat32, {kBatch, kHeads, kLen}));
  attend(0, 31, outs[0], lses[0]);
  attend(31, kKeys - 31, outs[1], lses[1]);
  attend(0, kKeys, outs[2], lses[2]);
  const StateTensors parts[] = {{outs[0].view(), lses[0].view()}, {outs[1].view(), lses[1].view()}};
  AttentionState states[2];
  merge_attention_states(
      make_merge_params("merge_attention_states", parts, 2, {outs[3].view(), lses[3].view()}, Layout::kBLHD, states));
  for (int64_t h = 0; h < kHeads; ++h) {
    EXPECT_TRUE(near(lses[3].at(1, h, 2), lses[2].at(1, h, 2), {2e-6, 1e-6}));
    for (int64_t d = 0; d < kDim; ++d) EXPECT_TRUE(near(outs[3].at(1, 2, h, d), outs[2].at(1, 2, h, d), {4e-6, 1e-5}));
  }
}

}  // namespace
}  // namespace dlattn::test
