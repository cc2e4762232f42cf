// attn_varlen against the definition in double.
#include "ops/ragged.h"

namespace dlattn::test {
namespace {

struct VarlenCase {
  DType dtype;
  std::vector<int64_t> len_q, len_k;
  RaggedOptions options = {};
  DType index = DType::kInt32;
  Storage storage = Storage::kContiguous;
  bool mask = false;
};

std::ostream& operator<<(std::ostream& os, const VarlenCase& c) {
  os << dtype_name(c.dtype) << " q";
  for (int64_t n : c.len_q) os << " " << n;
  os << " k";
  for (int64_t n : c.len_k) os << " " << n;
  return os << (c.options.is_causal ? " causal" : "") << " window " << c.options.window_left << ","
            << c.options.window_right << (c.mask ? " mask" : "") << " " << dtype_name(c.index);
}

using VarlenTest = CpuTestWithParam<VarlenCase>;

TEST_P(VarlenTest, MatchesTheDefinition) {
  const VarlenCase& c = GetParam();
  constexpr int64_t kHeads = 6, kKvHeads = 2, kDim = 40, kDimV = 24, kBefore = 2, kAfter = 3;
  std::mt19937 random(7);
  const std::vector<int64_t> cu_q = prefix_sums(c.len_q, kBefore), cu_k = prefix_sums(c.len_k, 1);
  const int64_t total_q = cu_q.back() + kAfter, total_k = cu_k.back() + 1, batch = static_cast<int64_t>(c.len_q.size());
  Tensor q(c.dtype, {total_q, kHeads, kDim}, c.storage), k(c.dtype, {total_k, kKvHeads, kDim}, c.storage);
  Tensor v(c.dtype, {total_k, kKvHeads, kDimV}, c.storage), out(c.dtype, {total_q, kHeads, kDimV}, c.storage);
  Tensor lse(DType::kFloat32, {kHeads, total_q});
  q.fill_random(random), k.fill_random(random), v.fill_random(random);
  for (int64_t h = 0; h < kKvHeads; ++h) {  // tokens of no sequence
    for (int64_t j : {int64_t{0}, total_k - 1}) {
      for (int64_t d = 0; d < kDim; ++d) k.set(NAN, j, h, d);
      for (int64_t d = 0; d < kDimV; ++d) v.set(NAN, j, h, d);
    }
  }
  const int64_t mask_q = *std::max_element(c.len_q.begin(), c.len_q.end());
  const int64_t mask_k = *std::max_element(c.len_k.begin(), c.len_k.end());
  Tensor mask(DType::kBool, {batch, mask_q, mask_k});
  mask.each([&](unsigned char* at) { store(DType::kBool, random() % 3 != 0, at); });
  Tensor cu_seqlens_q = index_tensor(c.index, cu_q), cu_seqlens_k = index_tensor(c.index, cu_k);

  AttentionTensors t;
  t.q = q.view(), t.k = k.view(), t.v = v.view(), t.out = out.view(), t.lse = lse.view();
  t.cu_seqlens_q = cu_seqlens_q.view(), t.cu_seqlens_k = cu_seqlens_k.view();
  if (c.mask) t.mask = mask.view();
  VarlenAttentionParams p = make_varlen_params("attn_varlen", t);
  set_options(p.options, c.options);
  const std::vector<unsigned char> clean_out = out.bytes(), clean_lse = lse.bytes();
  expect_same_bits(
      [&] {
        out.restore(clean_out), lse.restore(clean_lse);
        attn_varlen(p);
      },
      [&] { return joined(out, lse); });

  for (int64_t b = 0; b < batch; ++b) {
    Sequence s;
    const int64_t first_k = cu_k[static_cast<size_t>(b)];
    const int64_t first_q = cu_q[static_cast<size_t>(b)];
    s.len_q = c.len_q[static_cast<size_t>(b)], s.len_k = c.len_k[static_cast<size_t>(b)];
    s.num_heads = kHeads, s.num_kv_heads = kKvHeads, s.head_dim = kDim, s.head_dim_v = kDimV;
    s.q = [&](int64_t i, int64_t h, int64_t d) { return q.at(first_q + i, h, d); };
    s.k = [&](int64_t j, int64_t h, int64_t d) { return k.at(first_k + j, h, d); };
    s.v = [&](int64_t j, int64_t h, int64_t d) { return v.at(first_k + j, h, d); };
    if (c.mask) s.bias = [&](int64_t, int64_t i, int64_t j) { return mask.at(b, i, j) != 0.0 ? 0.0 : -INFINITY; };
    set_options(s, c.options);
    expect_packed_rows(s, first_q, out, lse);
  }
  out.expect_gaps_untouched("out");
  lse.expect_gaps_untouched("lse");
  for (int64_t i = 0; i < total_q; ++i) {
    if (i >= kBefore && i < total_q - kAfter) continue;
    EXPECT_TRUE(std::isnan(out.at(i, 3, 5))) << "token " << i << " of no sequence was written";
    EXPECT_TRUE(std::isnan(lse.at(3, i))) << "lse of token " << i << " of no sequence was written";
  }
}

std::vector<VarlenCase> varlen_cases() {
  const RaggedOptions causal{true}, window{true, 9, -1}, both{false, 5, 7}, capped{true, -1, -1, 2.0f};
  std::vector<VarlenCase> cases;
  for (DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    cases.push_back({dtype, {7}, {7}});
    cases.push_back({dtype, {0, 1, 7, 0, 33}, {5, 1, 0, 0, 65}});
    cases.push_back({dtype, {0, 1, 7, 0, 33}, {5, 9, 3, 0, 65}, causal, DType::kInt64});
    cases.push_back({dtype, {1, 1, 1}, {130, 2, 64}, causal, DType::kInt32, Storage::kPadded});
    cases.push_back({dtype, {63, 64, 65}, {65, 64, 63}, window, DType::kInt64, Storage::kSwapped});
    cases.push_back({dtype, {40, 2}, {40, 90}, both});
    cases.push_back({dtype, {17, 128}, {127, 129}, capped});
    cases.push_back({dtype, {3, 20, 1}, {40, 20, 7}, causal, DType::kInt32, Storage::kContiguous, true});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Ragged, VarlenTest, ::testing::ValuesIn(varlen_cases()));

}  // namespace
}  // namespace dlattn::test
