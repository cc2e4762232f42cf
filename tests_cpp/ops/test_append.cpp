// append_kv and rotary_append_kv.
#include <random>

#include "dlattn/dlattn.h"
#include "support/compare.h"
#include "support/cpu_test.h"
#include "support/tensor.h"

namespace dlattn::test {
namespace {

struct AppendCase {
  DType dtype;
  int64_t page_size;
  Layout layout;
  Storage storage;
  DType index;
};

std::ostream& operator<<(std::ostream& os, const AppendCase& c) {
  return os << dtype_name(c.dtype) << " page " << c.page_size << (c.layout == Layout::kBLHD ? " blhd " : " bhld ")
            << static_cast<int>(c.storage) << " " << dtype_name(c.index);
}

constexpr int64_t kBatch = 2, kLen = 5, kHeads = 3, kDim = 20, kDimV = 12, kTokens = kBatch * kLen, kMaxPosition = 30;

class AppendTest : public CpuTestWithParam<AppendCase> {
 protected:
  void SetUp() override {
    CpuTestWithParam<AppendCase>::SetUp();
    const AppendCase& c = GetParam();
    num_pages = 40 / c.page_size + 1;
    k = Tensor(c.dtype, {kBatch, kLen, kHeads, kDim}, c.storage);
    v = Tensor(c.dtype, {kBatch, kLen, kHeads, kDimV}, c.storage);
    k.fill_random(random), v.fill_random(random);
    k_cache = Tensor(c.dtype, {num_pages, c.page_size, kHeads, kDim}, c.storage);  // all NaN
    v_cache = Tensor(c.dtype, {num_pages, c.page_size, kHeads, kDimV}, c.storage);
    for (int64_t t = 0; t < kTokens; ++t) slots.push_back(t % 4 == 2 ? -1 : (t * 11 + 3) % (num_pages * c.page_size));
    slot_mapping = index_tensor(c.index, slots);
  }

  AppendTensors tensors() {
    const bool blhd = GetParam().layout == Layout::kBLHD;
    const std::vector<int> axes = blhd ? std::vector<int>{} : std::vector<int>{0, 2, 1, 3};
    AppendTensors t;
    t.layout = GetParam().layout;
    t.k = k.view(axes), t.v = v.view(axes), t.k_cache = k_cache.view(axes), t.v_cache = v_cache.view(axes);
    t.slot_mapping = slot_mapping.view();
    return t;
  }

  // The cache holds `expected(token, head, d)` in the slots that were named, NaN elsewhere.
  template <typename F>
  void expect_cache(Tensor& cache, int64_t dim, Bound bound, F&& expected) {
    for (int64_t slot = 0; slot < num_pages * GetParam().page_size; ++slot) {
      const auto found = std::find(slots.begin(), slots.end(), slot);
      for (int64_t h = 0; h < kHeads; ++h) {
        for (int64_t d = 0; d < dim; ++d) {
          const double want = found == slots.end() ? NAN : expected(found - slots.begin(), h, d);
          ASSERT_TRUE(near(cache.at(slot / GetParam().page_size, slot % GetParam().page_size, h, d), want, bound))
              << "slot " << slot << " head " << h << " dim " << d;
        }
      }
    }
    cache.expect_gaps_untouched("cache");
  }

  std::mt19937 random{5};
  int64_t num_pages = 0;
  std::vector<int64_t> slots;
  Tensor k, v, k_cache, v_cache, slot_mapping;
};

TEST_P(AppendTest, WritesEachTokenToItsSlot) {
  append_kv(make_append_params("append_kv", tensors()));
  expect_cache(k_cache, kDim, {0, 0}, [&](int64_t t, int64_t h, int64_t d) { return k.at(t / kLen, t % kLen, h, d); });
  expect_cache(v_cache, kDimV, {0, 0}, [&](int64_t t, int64_t h, int64_t d) { return v.at(t / kLen, t % kLen, h, d); });
}

TEST_P(AppendTest, RotatesAndWritesInOnePass) {
  const AppendCase& c = GetParam();
  for (bool interleaved : {false, true}) {
    for (bool keep_k : {false, true}) {
      constexpr int64_t kHalf = 6;
      Tensor q(c.dtype, {kBatch, kLen, 2 * kHeads, kDim}), q_out(c.dtype, {kBatch, kLen, 2 * kHeads, kDim});
      Tensor k_out(c.dtype, {kBatch, kLen, kHeads, kDim});
      Tensor cos(DType::kFloat32, {kMaxPosition, kHalf}), sin(DType::kFloat32, {kMaxPosition, kHalf});
      Tensor positions(c.index, {kBatch, kLen});
      q.fill_random(random), cos.fill_random(random), sin.fill_random(random);
      positions.each([&](unsigned char* at) { store(c.index, random() % kMaxPosition, at); });
      const bool blhd = c.layout == Layout::kBLHD;
      const std::vector<int> axes = blhd ? std::vector<int>{} : std::vector<int>{0, 2, 1, 3};
      RotaryTensors r;
      r.layout = c.layout;
      r.q = q.view(axes), r.k = k.view(axes), r.q_out = q_out.view(axes);
      if (keep_k) r.k_out = k_out.view(axes);
      r.cos = cos.view(), r.sin = sin.view(), r.positions = positions.view();
      RotaryAppendKVParams p = make_rotary_append_params("rotary_append_kv", r, tensors());
      p.rotary.interleaved = interleaved;
      rotary_append_kv(p);

      const auto rotated = [&](const Tensor& x, int64_t b, int64_t i, int64_t h, int64_t d) {
        if (d >= 2 * kHalf) return x.at(b, i, h, d);
        const int64_t pair = interleaved ? d / 2 : d % kHalf;
        const bool first = interleaved ? d % 2 == 0 : d < kHalf;
        const int64_t other = interleaved ? d ^ 1 : first ? d + kHalf : d - kHalf;
        const auto position = static_cast<int64_t>(positions.at(b, i));
        const double co = cos.at(position, pair), si = sin.at(position, pair);
        return x.at(b, i, h, d) * co + (first ? -1.0 : 1.0) * x.at(b, i, h, other) * si;
      };
      expect_cache(k_cache, kDim, rounding_bound(c.dtype),
                   [&](int64_t t, int64_t h, int64_t d) { return rotated(k, t / kLen, t % kLen, h, d); });
      expect_cache(v_cache, kDimV, {0, 0},
                   [&](int64_t t, int64_t h, int64_t d) { return v.at(t / kLen, t % kLen, h, d); });
      for (int64_t d = 0; d < kDim; ++d) {
        EXPECT_TRUE(near(q_out.at(1, 3, 4, d), rotated(q, 1, 3, 4, d), rounding_bound(c.dtype)));
        if (keep_k) {
          EXPECT_TRUE(near(k_out.at(1, 2, 1, d), rotated(k, 1, 2, 1, d), rounding_bound(c.dtype)));
        }
      }
      q_out.expect_gaps_untouched("q_out");
      k_out.expect_gaps_untouched("k_out");
    }
  }
}

std::vector<AppendCase> append_cases() {
  std::vector<AppendCase> cases;
  for (DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    cases.push_back({dtype, 1, Layout::kBLHD, Storage::kContiguous, DType::kInt32});
    cases.push_back({dtype, 3, Layout::kBHLD, Storage::kContiguous, DType::kInt64});
    cases.push_back({dtype, 16, Layout::kBLHD, Storage::kPadded, DType::kInt64});
    cases.push_back({dtype, 64, Layout::kBHLD, Storage::kSwapped, DType::kInt32});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Slots, AppendTest, ::testing::ValuesIn(append_cases()));

}  // namespace
}  // namespace dlattn::test
