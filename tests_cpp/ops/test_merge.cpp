// merge_attention_states against the definition in double, and against attention over all keys.
#include <cmath>
#include <random>

#include "dlattn/dlattn.h"
#include "support/compare.h"
#include "support/cpu_test.h"
#include "support/tensor.h"

namespace dlattn::test {
namespace {

constexpr int64_t kBatch = 2, kLen = 3, kHeads = 4, kDim = 20;

struct MergeCase {
  DType dtype;
  int num_states;
  bool packed, in_place;
  Storage storage;
};

std::ostream& operator<<(std::ostream& os, const MergeCase& c) {
  return os << dtype_name(c.dtype) << " states " << c.num_states << (c.packed ? " packed" : "")
            << (c.in_place ? " in place" : "") << " " << static_cast<int>(c.storage);
}

using MergeTest = CpuTestWithParam<MergeCase>;

// State n of row (b, i, h) is empty, with NaN in out, for some rows; all states are for one row.
bool is_empty(int64_t n, int64_t b, int64_t i, int64_t h) { return (b + i + h + n) % 3 == 0 || (b == 1 && i == 2); }

TEST_P(MergeTest, MatchesTheDefinition) {
  const MergeCase& c = GetParam();
  const int64_t batch = c.packed ? 1 : kBatch;
  std::mt19937 random(9);
  std::vector<Tensor> outs, lses;
  for (int n = 0; n < c.num_states; ++n) {
    outs.emplace_back(c.dtype, std::vector<int64_t>{batch, kLen, kHeads, kDim}, c.storage);
    lses.emplace_back(DType::kFloat32, std::vector<int64_t>{batch, kHeads, kLen}, c.storage);
    outs.back().fill_random(random), lses.back().fill_random(random, -3.0, 3.0);
    for (int64_t b = 0; b < batch; ++b) {
      for (int64_t i = 0; i < kLen; ++i) {
        for (int64_t h = 0; h < kHeads; ++h) {
          if (!is_empty(n, b, i, h)) continue;
          lses.back().set(-INFINITY, b, h, i);
          for (int64_t d = 0; d < kDim; ++d) outs.back().set(NAN, b, i, h, d);
        }
      }
    }
  }
  const std::vector<Tensor> outs_in = outs, lses_in = lses;
  Tensor out(c.dtype, {batch, kLen, kHeads, kDim}, c.storage), lse(DType::kFloat32, {batch, kHeads, kLen}, c.storage);
  const auto drop_batch = [&](TensorView view) {
    if (!c.packed) return view;
    for (int i = 1; i < view.ndim; ++i) view.shape[i - 1] = view.shape[i], view.strides[i - 1] = view.strides[i];
    --view.ndim;
    return view;
  };
  std::vector<StateTensors> inputs;
  for (size_t n = 0; n < outs.size(); ++n) inputs.push_back({drop_batch(outs[n].view()), drop_batch(lses[n].view())});
  Tensor& result = c.in_place ? outs.back() : out;
  std::vector<AttentionState> states(outs.size());
  const MergeParams p =
      make_merge_params("merge_attention_states", inputs.data(), c.num_states,
                        {drop_batch(result.view()), drop_batch(lse.view())}, Layout::kBLHD, states.data());
  merge_attention_states(p);

  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t i = 0; i < kLen; ++i) {
      for (int64_t h = 0; h < kHeads; ++h) {
        double top = -INFINITY, sum = 0.0;
        for (const Tensor& t : lses_in) top = std::fmax(top, t.at(b, h, i));
        std::vector<double> want(kDim, 0.0);
        for (size_t n = 0; n < outs_in.size() && top > -INFINITY; ++n) {
          const double weight = std::exp(lses_in[n].at(b, h, i) - top);
          if (weight == 0.0) continue;
          sum += weight;
          for (int64_t d = 0; d < kDim; ++d) want[static_cast<size_t>(d)] += weight * outs_in[n].at(b, i, h, d);
        }
        EXPECT_TRUE(near(lse.at(b, h, i), top > -INFINITY ? top + std::log(sum) : top, {2e-6, 1e-6}));
        for (int64_t d = 0; d < kDim; ++d) {
          const double value = sum > 0.0 ? want[static_cast<size_t>(d)] / sum : 0.0;
          ASSERT_TRUE(near(result.at(b, i, h, d), value, rounding_bound(c.dtype)))
              << b << "," << i << "," << h << "," << d;
        }
      }
    }
  }
  result.expect_gaps_untouched("out");
  lse.expect_gaps_untouched("lse");
}

std::vector<MergeCase> merge_cases() {
  std::vector<MergeCase> cases;
  for (DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    for (int states : {1, 2, 3, 9}) {
      cases.push_back({dtype, states, false, false, Storage::kContiguous});
      cases.push_back({dtype, states, true, false, Storage::kSwapped});
      cases.push_back({dtype, states, false, true, Storage::kPadded});
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(States, MergeTest, ::testing::ValuesIn(merge_cases()));

class MergeRulesTest : public CpuTest {};

TEST_F(MergeRulesTest, HalvesOfTheKeysMakeTheWhole) {
  std::mt19937 random(1);
  constexpr int64_t kKeys = 90;
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
