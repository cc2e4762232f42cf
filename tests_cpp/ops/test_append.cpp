// append_kv and rotary_append_kv.
#include "ops/append_problem.h"
#include "support/cpu_test.h"

namespace dlattn::test {
namespace {

using AppendTest = CpuTestWithParam<AppendCase>;

TEST_P(AppendTest, WritesEachTokenToItsSlot) {
  AppendProblem problem(GetParam());
  problem.run(problem.params());
  problem.expect_definition();
}

INSTANTIATE_TEST_SUITE_P(Slots, AppendTest, ::testing::ValuesIn(append_cases()));

}  // namespace
}  // namespace dlattn::test
