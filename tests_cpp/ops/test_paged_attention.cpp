// attn_paged_decode and attn_paged_prefill against the definition in double.
#include "ops/paged_problem.h"
#include "support/cpu_test.h"

namespace dlattn::test {
namespace {

using PagedTest = CpuTestWithParam<PagedCase>;

TEST_P(PagedTest, MatchesTheDefinition) {
  PagedProblem problem(GetParam());
  const PagedAttentionParams p = problem.params();
  expect_same_bits(
      [&] {
        problem.restore();
        problem.run(p);
      },
      [&] { return bytes_of(problem.outputs()); });
  problem.expect_definition();
  problem.out.expect_gaps_untouched("out");
  problem.lse.expect_gaps_untouched("lse");
}

INSTANTIATE_TEST_SUITE_P(Pages, PagedTest, ::testing::ValuesIn(paged_cases()));

}  // namespace
}  // namespace dlattn::test
