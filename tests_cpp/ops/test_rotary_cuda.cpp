// rotary_embedding on the device against the definition in double.
#include <cmath>

#include "ops/on_device.h"
#include "ops/rotary_problem.h"

namespace dlattn::test {
namespace {

using RotaryCudaTest = CudaTestWithParam<RotaryCase>;

TEST_P(RotaryCudaTest, MatchesTheDefinition) {
  RotaryProblem problem(GetParam());
  expect_definition_on_device(problem, stream());
}

// One token, many tokens, the heads and dims of models, more heads or sequences than a grid's axis has blocks.
std::vector<RotaryCase> large_rotary_cases() {
  std::vector<RotaryCase> cases;
  for (DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    for (bool interleaved : {false, true}) {
      RotaryCase base;
      base.dtype = dtype, base.interleaved = interleaved, base.head_dim = base.rotary_dim = 128, base.positions = true;
      std::vector<RotaryCase> some(8, base);
      some[0].batch_size = some[0].seqlen = 1, some[0].num_heads = 32, some[0].num_kv_heads = 8;
      some[1].seqlen = 300, some[1].num_heads = 8, some[1].in_place = true, some[1].index = DType::kInt64;
      some[2].head_dim = 96, some[2].rotary_dim = 48, some[2].seqlen = 65;
      some[3].head_dim = some[3].rotary_dim = 64, some[3].seqlen = 129, some[3].table_dtype = DType::kBFloat16;
      some[4].head_dim = 80, some[4].rotary_dim = 34, some[4].seqlen = 33, some[4].positions = false;
      some[5].head_dim = some[5].rotary_dim = 256, some[5].seqlen = 31, some[5].storage = Storage::kSwapped;
      some[6].head_dim = some[6].rotary_dim = 8, some[6].batch_size = 70000, some[6].seqlen = 1;
      some[6].num_heads = 1, some[6].num_kv_heads = 1;
      some[7].head_dim = some[7].rotary_dim = 8, some[7].batch_size = 1, some[7].seqlen = 2;
      some[7].num_heads = 70000, some[7].num_kv_heads = 70000;
      if (dtype != DType::kBFloat16) some.resize(6);  // one dtype is enough for the size of a grid
      cases.insert(cases.end(), some.begin(), some.end());
    }
  }
  return cases;
}

// For the sanitizers (ops/small_cases.h): aligned rows and others, each dtype and pairing.
std::vector<RotaryCase> small_rotary_cases() {
  std::vector<RotaryCase> cases;
  for (DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    for (bool interleaved : {false, true}) {
      RotaryCase c;
      c.dtype = dtype, c.interleaved = interleaved, c.positions = true;
      c.head_dim = c.rotary_dim = 64;
      if (cases.size() % 4 == 1 || cases.size() % 4 == 2) {
        c.storage = Storage::kShifted, c.head_dim = 33, c.rotary_dim = 20, c.in_place = true;
      }
      cases.push_back(c);
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Small, RotaryCudaTest, ::testing::ValuesIn(small_rotary_cases()));
INSTANTIATE_TEST_SUITE_P(Pairs, RotaryCudaTest, ::testing::ValuesIn(rotary_cases()));
INSTANTIATE_TEST_SUITE_P(Large, RotaryCudaTest, ::testing::ValuesIn(large_rotary_cases()));

class RotaryCudaRulesTest : public CudaTest {};

TEST_F(RotaryCudaRulesTest, PositionOutsideTheTableGivesNanRows) {
  for (bool interleaved : {false, true}) {
    RotaryCase c;
    c.positions = true, c.rotary_dim = 16, c.interleaved = interleaved, c.index = DType::kInt64;
    RotaryProblem problem(c);
    const int64_t wrong[] = {-1, problem.max_position, INT64_C(1) << 40};
    for (int64_t n = 0; n < 3; ++n) problem.positions.set(static_cast<double>(wrong[n]), 1, 2 * n);
    DeviceTensors device(problem.tensors(), stream());
    const RotaryParams params = device.on_device(problem.params());
    run_on_device(problem, device, stream(), [&](int) { problem.run(params, stream()); });
    for (int64_t i = 0; i < c.seqlen; ++i) {
      for (int64_t d = 0; d < c.head_dim; ++d) {
        const bool nan = i % 2 == 0 && i < 6 && d < c.rotary_dim;
        if (d >= c.rotary_dim && i % 2 == 0 && i < 6) continue;  // of a wrong row: passed through, or NaN
        ASSERT_EQ(std::isnan(problem.q_out.at(1, i, 3, d)), nan) << i << "," << d;
        ASSERT_EQ(std::isnan(problem.k_out.at(1, i, 1, d)), nan) << i << "," << d;
        ASSERT_FALSE(std::isnan(problem.q_out.at(0, i, 0, d))) << i << "," << d;
      }
    }
    problem.q_out.expect_gaps_untouched("q_out");
    problem.k_out.expect_gaps_untouched("k_out");
  }
}

}  // namespace
}  // namespace dlattn::test
