// A case of ragged attention with its arrays: tokens of no sequence lie before, and after, those of the sequences.
#pragma once

#include "ops/ragged.h"

namespace dlattn::test {

struct VarlenCase {
  DType dtype;
  std::vector<int64_t> len_q, len_k;
  RaggedOptions options = {};
  DType index = DType::kInt32;
  Storage storage = Storage::kContiguous;
  HeadSizes heads = {};
};

inline std::ostream& operator<<(std::ostream& os, const VarlenCase& c) {
  os << dtype_name(c.dtype);
  print_lengths(os, " q", c.len_q);
  print_lengths(os, " k", c.len_k);
  return os << c.heads << c.options << " " << dtype_name(c.index) << " " << storage_name(c.storage);
}

struct VarlenProblem {
  static constexpr int64_t kBefore = 2, kAfter = 3;  // tokens of no sequence

  explicit VarlenProblem(const VarlenCase& wanted) : c(wanted), batch(static_cast<int64_t>(c.len_q.size())), random(7) {
    const HeadSizes& h = c.heads;
    cu_q = prefix_sums(c.len_q, kBefore), cu_k = prefix_sums(c.len_k, 1);
    total_q = cu_q.back() + kAfter, total_k = cu_k.back() + 1;
    q = Tensor(c.dtype, {total_q, h.num_heads, h.head_dim}, c.storage);
    k = Tensor(c.dtype, {total_k, h.num_kv_heads, h.head_dim}, c.storage);
    v = Tensor(c.dtype, {total_k, h.num_kv_heads, h.head_dim_v}, c.storage);
    out = Tensor(c.dtype, {total_q, h.num_heads, h.head_dim_v}, c.storage);
    lse = Tensor(DType::kFloat32, {h.num_heads, total_q});
    q.fill_random(random), k.fill_random(random), v.fill_random(random);
    for (int64_t head = 0; head < h.num_kv_heads; ++head) {
      for (int64_t j : {int64_t{0}, total_k - 1}) {
        for (int64_t d = 0; d < h.head_dim; ++d) k.set(NAN, j, head, d);
        for (int64_t d = 0; d < h.head_dim_v; ++d) v.set(NAN, j, head, d);
      }
    }
    arrays = OptionArrays(c.options, c.dtype, batch, h.num_heads, longest_of(c.len_q), longest_of(c.len_k), random);
    cu_seqlens_q = index_tensor(c.index, cu_q), cu_seqlens_k = index_tensor(c.index, cu_k);
    clean_out = out.bytes(), clean_lse = lse.bytes();
  }

  VarlenAttentionParams params() {
    AttentionTensors t;
    t.q = q.view(), t.k = k.view(), t.v = v.view(), t.out = out.view(), t.lse = lse.view();
    t.cu_seqlens_q = cu_seqlens_q.view(), t.cu_seqlens_k = cu_seqlens_k.view();
    set_options(t, c.options, arrays);
    VarlenAttentionParams p = make_varlen_params("attn_varlen", t);
    set_options(p.options, c.options);
    return p;
  }

  void run(const VarlenAttentionParams& p, Stream stream = nullptr) const { attn_varlen(p, stream); }

  size_t workspace_size(const VarlenAttentionParams& p) const { return attn_workspace_size(p); }
  Explanation explained(const VarlenAttentionParams& p) const { return explain(p); }

  // All arrays that params() points to, those that are written, and the latter as they were.
  std::vector<Tensor*> tensors() {
    return {&q, &k, &v, &out, &lse, &arrays.sinks, &arrays.alibi, &arrays.mask, &cu_seqlens_q, &cu_seqlens_k};
  }
  std::vector<Tensor*> outputs() { return {&out, &lse}; }
  void restore() { out.restore(clean_out), lse.restore(clean_lse); }

  void expect_definition() const {
    for (int64_t b = 0; b < batch; ++b) {
      Sequence s;
      const int64_t first_k = cu_k[static_cast<size_t>(b)];
      const int64_t first_q = cu_q[static_cast<size_t>(b)];
      s.len_q = c.len_q[static_cast<size_t>(b)], s.len_k = c.len_k[static_cast<size_t>(b)];
      s.num_heads = c.heads.num_heads, s.num_kv_heads = c.heads.num_kv_heads;
      s.head_dim = c.heads.head_dim, s.head_dim_v = c.heads.head_dim_v;
      s.q = [&](int64_t i, int64_t h, int64_t d) { return q.at(first_q + i, h, d); };
      s.k = [&](int64_t j, int64_t h, int64_t d) { return k.at(first_k + j, h, d); };
      s.v = [&](int64_t j, int64_t h, int64_t d) { return v.at(first_k + j, h, d); };
      set_options(s, c.options, arrays, b);
      expect_packed_rows(s, first_q, out, lse);
    }
  }

  // Rows of no sequence are as they were.
  void expect_rows_outside_untouched() const {
    for (int64_t i = 0; i < total_q; ++i) {
      if (i >= kBefore && i < total_q - kAfter) continue;
      for (int64_t h = 0; h < c.heads.num_heads; ++h) {
        for (int64_t d = 0; d < c.heads.head_dim_v; ++d) {
          ASSERT_TRUE(std::isnan(out.at(i, h, d))) << "token " << i << " of no sequence was written";
        }
        ASSERT_TRUE(std::isnan(lse.at(h, i))) << "lse of token " << i << " of no sequence was written";
      }
    }
  }

  VarlenCase c;
  int64_t batch, total_q = 0, total_k = 0;
  std::mt19937 random;
  std::vector<int64_t> cu_q, cu_k;
  Tensor q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k;
  OptionArrays arrays;
  std::vector<unsigned char> clean_out, clean_lse;
};

inline std::vector<VarlenCase> varlen_cases() {
  const RaggedOptions causal{true}, window{true, 9, -1}, both{false, 5, 7}, capped{true, -1, -1, 2.0f};
  RaggedOptions masked{true}, all{true, 30, 2, 3.0f, 0.4f, true, true, RaggedMask::kFloat}, sinks, alibi{true};
  masked.mask = RaggedMask::kBool;
  sinks.sinks = true;
  alibi.alibi = true;
  std::vector<VarlenCase> cases;
  for (DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    cases.push_back({dtype, {7}, {7}});
    cases.push_back({dtype, {0, 1, 7, 0, 33}, {5, 1, 0, 0, 65}});
    cases.push_back({dtype, {0, 1, 7, 0, 33}, {5, 9, 3, 0, 65}, causal, DType::kInt64});
    cases.push_back({dtype, {1, 1, 1}, {130, 2, 64}, causal, DType::kInt32, Storage::kPadded});
    cases.push_back({dtype, {63, 64, 65}, {65, 64, 63}, window, DType::kInt64, Storage::kSwapped});
    cases.push_back({dtype, {40, 2}, {40, 90}, both});
    cases.push_back({dtype, {17, 128}, {127, 129}, capped});
    cases.push_back({dtype, {3, 20, 1}, {40, 20, 7}, masked});
    cases.push_back({dtype, {3, 0, 1, 20}, {40, 8, 9, 0}, sinks});
    cases.push_back({dtype, {1, 21}, {90, 50}, alibi, DType::kInt64, Storage::kShifted});
    cases.push_back({dtype, {3, 20, 1}, {90, 20, 7}, all, DType::kInt64, Storage::kPadded});
  }
  return cases;
}

}  // namespace dlattn::test
