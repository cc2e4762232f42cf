// merge_attention_states on the device against the definition in double.
#include "ops/merge_problem.h"
#include "ops/on_device.h"

namespace dlattn::test {
namespace {

using MergeCudaTest = CudaTestWithParam<MergeCase>;

TEST_P(MergeCudaTest, MatchesTheDefinition) {
  MergeProblem problem(GetParam());
  expect_definition_on_device(problem, stream());
}

// The dims of models, many states (more than one launch's parameters may hold), more rows or heads than a grid's axis.
std::vector<MergeCase> large_merge_cases() {
  std::vector<MergeCase> cases;
  for (DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    MergeCase base;
    base.dtype = dtype, base.head_dim_v = 128;
    std::vector<MergeCase> some(8, base);
    some[0].seqlen_q = 100, some[0].num_heads = 8;
    some[1].num_states = 33, some[1].storage = Storage::kPadded;
    some[2].num_states = 100, some[2].in_place = true;
    some[3].num_states = 257, some[3].packed = true;
    some[4].head_dim_v = 256, some[4].storage = Storage::kShifted;
    some[5].head_dim_v = 1, some[5].num_states = 5;
    some[6].head_dim_v = 8, some[6].batch_size = 70000, some[6].seqlen_q = 1, some[6].num_heads = 1;
    some[7].head_dim_v = 8, some[7].num_heads = 70000, some[7].seqlen_q = 1, some[7].batch_size = 1;
    cases.insert(cases.end(), some.begin(), some.end());
  }
  return cases;
}

// For the sanitizers (ops/small_cases.h): few and many states, aligned rows and others.
std::vector<MergeCase> small_merge_cases() {
  std::vector<MergeCase> cases(4);
  cases[0].head_dim_v = 64;
  cases[1].dtype = DType::kFloat16, cases[1].num_states = 9, cases[1].head_dim_v = 64, cases[1].in_place = true;
  cases[2].dtype = DType::kBFloat16, cases[2].num_states = 3, cases[2].storage = Storage::kShifted;
  cases[3].dtype = DType::kBFloat16, cases[3].num_states = 257, cases[3].head_dim_v = 64;
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Small, MergeCudaTest, ::testing::ValuesIn(small_merge_cases()));
INSTANTIATE_TEST_SUITE_P(States, MergeCudaTest, ::testing::ValuesIn(merge_cases()));
INSTANTIATE_TEST_SUITE_P(Large, MergeCudaTest, ::testing::ValuesIn(large_merge_cases()));

}  // namespace
}  // namespace dlattn::test
