// attn_varlen against the definition in double.
#include "ops/varlen_problem.h"
#include "support/cpu_test.h"

namespace dlattn::test {
namespace {

using VarlenTest = CpuTestWithParam<VarlenCase>;

TEST_P(VarlenTest, MatchesTheDefinition) {
  VarlenProblem problem(GetParam());
  const VarlenAttentionParams p = problem.params();
  expect_same_bits(
      [&] {
        problem.restore();
        problem.run(p);
      },
      [&] { return bytes_of(problem.outputs()); });
  problem.expect_definition();
  problem.expect_rows_outside_untouched();
  problem.out.expect_gaps_untouched("out");
  problem.lse.expect_gaps_untouched("lse");
}

INSTANTIATE_TEST_SUITE_P(Ragged, VarlenTest, ::testing::ValuesIn(varlen_cases()));

}  // namespace
}  // namespace dlattn::test
