// rotary_embedding against the definition in double.
#include "ops/rotary_problem.h"
#include "support/cpu_test.h"

namespace dlattn::test {
namespace {

using RotaryTest = CpuTestWithParam<RotaryCase>;

TEST_P(RotaryTest, MatchesTheDefinition) {
  RotaryProblem problem(GetParam());
  const RotaryParams p = problem.params();
  expect_same_bits(
      [&] {
        problem.restore();
        problem.run(p);
      },
      [&] { return bytes_of(problem.outputs()); });
  problem.expect_definition();
}

INSTANTIATE_TEST_SUITE_P(Pairs, RotaryTest, ::testing::ValuesIn(rotary_cases()));

}  // namespace
}  // namespace dlattn::test
