// append_kv and rotary_append_kv on the device against the definition in double.
#include <cmath>

#include "ops/append_problem.h"
#include "ops/on_device.h"

namespace dlattn::test {
namespace {

using AppendCudaTest = CudaTestWithParam<AppendCase>;

TEST_P(AppendCudaTest, WritesEachTokenToItsSlot) {
  AppendProblem problem(GetParam());
  expect_definition_on_device(problem, stream());
}

// One token, the heads and dims of models.
std::vector<AppendCase> wide_append_cases() {
  std::vector<AppendCase> cases;
  for (DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    AppendCase base;
    base.dtype = dtype, base.num_heads = 8, base.num_kv_heads = 2;
    base.head_dim = base.head_dim_v = base.rotary_dim = 128;
    std::vector<AppendCase> some(3, base);
    some[0].batch_size = some[0].seqlen = 1;
    some[1].seqlen = 130, some[1].index = DType::kInt64;
    some[2].head_dim = 192, some[2].rotary_dim = 64, some[2].seqlen = 33, some[2].page_size = 33;
    for (const AppendCase& one : some) {
      for (const AppendCase& c : forms_of(one)) cases.push_back(c);
    }
  }
  return cases;
}

// More tokens, or heads, than an axis of a grid may have.
std::vector<AppendCase> large_append_cases() {
  AppendCase tokens, heads;
  tokens.dtype = heads.dtype = DType::kBFloat16;
  tokens.head_dim = tokens.head_dim_v = tokens.rotary_dim = 8, tokens.batch_size = 70000, tokens.seqlen = 1;
  tokens.num_heads = tokens.num_kv_heads = 1, tokens.page_size = 1;
  heads.head_dim = heads.head_dim_v = heads.rotary_dim = 8, heads.batch_size = 1, heads.seqlen = 2;
  heads.num_heads = heads.num_kv_heads = 70000, heads.page_size = 2;
  return {tokens, forms_of(tokens)[2], heads, forms_of(heads)[2]};
}

// For the sanitizers (ops/small_cases.h): both operations, aligned rows and others.
std::vector<AppendCase> small_append_cases() {
  std::vector<AppendCase> cases;
  for (DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    AppendCase base;
    base.dtype = dtype, base.page_size = 3;
    if (dtype != DType::kFloat16) {
      base.head_dim = base.rotary_dim = 64, base.head_dim_v = 32;
    } else {
      base.storage = Storage::kShifted, base.layout = Layout::kBHLD;
    }
    const std::vector<AppendCase> forms = forms_of(base);
    cases.push_back(forms[0]);
    cases.push_back(forms[dtype == DType::kFloat32 ? 4 : 1]);  // 4: interleaved, and k_out too
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Small, AppendCudaTest, ::testing::ValuesIn(small_append_cases()));
INSTANTIATE_TEST_SUITE_P(Slots, AppendCudaTest, ::testing::ValuesIn(append_cases()));
INSTANTIATE_TEST_SUITE_P(Wide, AppendCudaTest, ::testing::ValuesIn(wide_append_cases()));
INSTANTIATE_TEST_SUITE_P(Large, AppendCudaTest, ::testing::ValuesIn(large_append_cases()));

class AppendCudaRulesTest : public CudaTest {};

// Slots that no page has are not written anywhere; the others are.
TEST_F(AppendCudaRulesTest, SlotsOutsideTheCacheAreSkipped) {
  AppendCase base;
  base.index = DType::kInt64;
  for (const AppendCase& c : forms_of(base)) {
    AppendProblem problem(c);
    const int64_t wrong[] = {-7, problem.num_pages * c.page_size, INT64_C(1) << 40};
    for (size_t n = 0; n < 3; ++n) {
      problem.slots[3 * n] = -1;  // what the definition sees
      problem.slot_mapping.set(static_cast<double>(wrong[n]), 3 * n);
    }
    expect_definition_on_device(problem, stream());
  }
}

TEST_F(AppendCudaRulesTest, PositionOutsideTheTableGivesNanRows) {
  AppendCase c;
  c.rotary = true, c.keep_k = true, c.dtype = DType::kBFloat16, c.head_dim = c.head_dim_v = c.rotary_dim = 64;
  AppendProblem problem(c);
  problem.positions.set(AppendProblem::kMaxPosition, 0, 1);
  DeviceTensors device(problem.tensors(), stream());
  const RotaryAppendKVParams params = device.on_device(problem.params());
  run_on_device(problem, device, stream(), [&](int) { problem.run(params, stream()); });
  for (int64_t i = 0; i < c.seqlen; ++i) {
    ASSERT_EQ(std::isnan(problem.q_out.at(0, i, 2, 7)), i == 1);
    ASSERT_EQ(std::isnan(problem.k_out.at(0, i, 1, 7)), i == 1);
  }
}

}  // namespace
}  // namespace dlattn::test
