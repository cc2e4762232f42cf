// A case of attention against a paged cache with its arrays. Pages are scattered; unused pages, page tails and keys left of
// every window hold NaN, unused table entries an absurd id.
#pragma once

#include "ops/ragged.h"

namespace dlattn::test {

struct PagedCase {
  DType dtype;
  int64_t page_size;
  std::vector<int64_t> len_q, len_k;  // decode: all len_q alike
  bool prefill;
  RaggedOptions options = {};
  DType index = DType::kInt32;
  Storage storage = Storage::kContiguous;
  Layout layout = Layout::kBLHD;
  HeadSizes heads = {};
  int64_t most_keys = 0;  // that the table has room for; 0: a little more than the longest sequence
  bool reversed = false;  // page 0 is the last one in memory, strides from page to page are negative
};

inline std::ostream& operator<<(std::ostream& os, const PagedCase& c) {
  os << dtype_name(c.dtype) << " page " << c.page_size << (c.prefill ? " prefill" : " decode");
  print_lengths(os, " q", c.len_q);
  print_lengths(os, " k", c.len_k);
  return os << c.heads << c.options << (c.layout == Layout::kBLHD ? " blhd " : " bhld ") << dtype_name(c.index) << " "
            << storage_name(c.storage) << (c.reversed ? " reversed" : "");
}

struct PagedProblem {
  static constexpr int64_t kAbsurd = 0x7fffffff;  // the id in table entries that must not be read

  explicit PagedProblem(const PagedCase& wanted) : c(wanted), random(11) {
    batch = static_cast<int64_t>(c.len_q.size());
    const HeadSizes& n = c.heads;
    const int64_t longest = longest_of(c.len_k);
    max_pages = (std::max(longest, c.most_keys) + c.page_size - 1) / c.page_size + 2;
    num_pages = batch * max_pages + 1;
    k = Tensor(c.dtype, {num_pages, c.page_size, n.num_kv_heads, n.head_dim}, c.storage);
    v = Tensor(c.dtype, {num_pages, c.page_size, n.num_kv_heads, n.head_dim_v}, c.storage);
    table = Tensor(c.index, {batch, max_pages}, c.storage);
    table.fill(kAbsurd);
    std::vector<int64_t> free(static_cast<size_t>(num_pages));
    std::iota(free.begin(), free.end(), 0);
    std::shuffle(free.begin(), free.end(), random);
    std::vector<bool> used(static_cast<size_t>(num_pages * c.page_size), false);
    for (int64_t b = 0; b < batch; ++b) {
      for (int64_t j = first_key(b); j < len_k(b); ++j) {
        const int64_t page = j / c.page_size;
        if (table.at(b, page) == kAbsurd) {
          table.set(static_cast<double>(c.reversed ? num_pages - 1 - free.back() : free.back()), b, page);
          free.pop_back();
        }
        used[static_cast<size_t>(id(b, j) * c.page_size + j % c.page_size)] = true;
      }
    }
    k.fill_random(random), v.fill_random(random);
    for (int64_t row = 0; row < num_pages * c.page_size; ++row) {
      if (used[static_cast<size_t>(row)]) continue;
      for (int64_t h = 0; h < n.num_kv_heads; ++h) {
        for (int64_t d = 0; d < n.head_dim; ++d) k.set(NAN, row / c.page_size, row % c.page_size, h, d);
        for (int64_t d = 0; d < n.head_dim_v; ++d) v.set(NAN, row / c.page_size, row % c.page_size, h, d);
      }
    }
    cu_q = prefix_sums(c.len_q, 0);
    cu_seqlens_q = index_tensor(c.index, cu_q);
    seqlens_k = index_tensor(c.index, c.len_k);
    // Decode writes [batch, len, ...]: the same memory as packed tokens, which the comparison uses.
    q = Tensor(c.dtype, {cu_q.back(), n.num_heads, n.head_dim});
    out = Tensor(c.dtype, {cu_q.back(), n.num_heads, n.head_dim_v});
    q.fill_random(random);
    lse = c.prefill ? Tensor(DType::kFloat32, {n.num_heads, cu_q.back()})
                    : Tensor(DType::kFloat32, {batch, n.num_heads, c.len_q[0]});
    arrays = OptionArrays(c.options, c.dtype, batch, n.num_heads, longest_of(c.len_q), longest, random);
    clean_out = out.bytes(), clean_lse = lse.bytes();
  }

  size_t workspace_size(const PagedAttentionParams& p) const { return attn_workspace_size(p); }
  Explanation explained(const PagedAttentionParams& p) const { return explain(p); }

  // All arrays that params() points to, those that are written, and the latter as they were.
  std::vector<Tensor*> tensors() {
    return {&q, &k, &v, &out, &lse, &arrays.sinks, &arrays.alibi, &arrays.mask, &table, &seqlens_k, &cu_seqlens_q};
  }
  std::vector<Tensor*> outputs() { return {&out, &lse}; }
  void restore() { out.restore(clean_out), lse.restore(clean_lse); }

  void run(const PagedAttentionParams& p, Stream stream = nullptr) const {
    c.prefill ? attn_paged_prefill(p, stream) : attn_paged_decode(p, stream);
  }

  int64_t len_k(int64_t b) const { return c.len_k[static_cast<size_t>(b)]; }
  int64_t len_q(int64_t b) const { return c.len_q[static_cast<size_t>(b)]; }
  int64_t id(int64_t b, int64_t j) const {  // in memory
    const auto entry = static_cast<int64_t>(table.at(b, j / c.page_size));
    return c.reversed ? num_pages - 1 - entry : entry;
  }
  int64_t first_key(int64_t b) const {  // that a query sees
    return c.options.window_left < 0 ? 0 : std::max<int64_t>(0, len_k(b) - len_q(b) - c.options.window_left);
  }

  PagedAttentionParams params() {
    const std::vector<int> caches = c.layout == Layout::kBLHD ? std::vector<int>{} : std::vector<int>{0, 2, 1, 3};
    AttentionTensors t;
    t.layout = c.layout;
    t.q = q.view(), t.out = out.view(), t.lse = lse.view();
    t.k = k.view(caches), t.v = v.view(caches);
    t.page_table = table.view(), t.seqlens_k = seqlens_k.view();
    set_options(t, c.options, arrays);
    if (c.prefill) {
      t.cu_seqlens_q = cu_seqlens_q.view();
    } else {
      t.q = batched(t.q);
      t.out = batched(t.out);
    }
    PagedAttentionParams p = make_paged_params(c.prefill ? "attn_paged_prefill" : "attn_paged_decode", t);
    set_options(p.options, c.options);
    if (c.reversed) {
      p.k_cache = last_page(p.k_cache, p.k_stride_page), p.k_stride_page = -p.k_stride_page;
      p.v_cache = last_page(p.v_cache, p.v_stride_page), p.v_stride_page = -p.v_stride_page;
    }
    return p;
  }
  const void* last_page(const void* first, int64_t stride) const {
    return static_cast<const char*>(first) + (num_pages - 1) * stride * item_size(c.dtype);
  }

  // [batch * len, heads, dim] as [batch, len, heads, dim] in the layout.
  TensorView batched(TensorView packed) const {
    TensorView view = packed;
    const int seq = c.layout == Layout::kBLHD ? 1 : 2;
    view.ndim = 4;
    view.shape[0] = batch, view.strides[0] = len_q(0) * packed.strides[0];
    view.shape[seq] = len_q(0), view.strides[seq] = packed.strides[0];
    view.shape[3 - seq] = packed.shape[1], view.strides[3 - seq] = packed.strides[1];
    view.shape[3] = packed.shape[2], view.strides[3] = packed.strides[2];
    return view;
  }

  void expect_definition() const {
    Tensor packed_lse(DType::kFloat32, {c.heads.num_heads, cu_q.back()});
    for (int64_t b = 0; b < batch; ++b) {
      for (int64_t i = 0; i < len_q(b); ++i) {
        const int64_t token = cu_q[static_cast<size_t>(b)] + i;
        for (int64_t h = 0; h < c.heads.num_heads; ++h)
          packed_lse.set(c.prefill ? lse.at(h, token) : lse.at(b, h, i), h, token);
      }
    }
    for (int64_t b = 0; b < batch; ++b) {
      const int64_t first = cu_q[static_cast<size_t>(b)];
      Sequence s;
      s.len_q = len_q(b), s.len_k = len_k(b);
      s.num_heads = c.heads.num_heads, s.num_kv_heads = c.heads.num_kv_heads, s.head_dim = c.heads.head_dim,
      s.head_dim_v = c.heads.head_dim_v;
      s.q = [&](int64_t i, int64_t h, int64_t d) { return q.at(first + i, h, d); };
      const auto entry = [&](const Tensor& cache, int64_t j, int64_t h, int64_t d) {  // hidden keys have no page
        return j < first_key(b) ? NAN : cache.at(id(b, j), j % c.page_size, h, d);
      };
      s.k = [&](int64_t j, int64_t h, int64_t d) { return entry(k, j, h, d); };
      s.v = [&](int64_t j, int64_t h, int64_t d) { return entry(v, j, h, d); };
      set_options(s, c.options, arrays, b);
      expect_packed_rows(s, first, out, packed_lse);
    }
  }

  PagedCase c;
  std::mt19937 random;
  int64_t batch, max_pages, num_pages;
  std::vector<int64_t> cu_q;
  Tensor q, k, v, out, lse, table, seqlens_k, cu_seqlens_q;
  OptionArrays arrays;
  std::vector<unsigned char> clean_out, clean_lse;
};

inline std::vector<PagedCase> paged_cases() {
  const RaggedOptions causal{true}, window{true, 9, -1}, capped{false, 40, 3, 2.0f};
  const RaggedOptions all{true, 70, 2, 3.0f, 0.4f, true, true, RaggedMask::kFloat};
  RaggedOptions masked{true};
  masked.mask = RaggedMask::kBool, masked.sinks = true;
  std::vector<PagedCase> cases;
  for (DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    for (int64_t page_size : {1, 3, 16}) {
      PagedCase backwards{dtype, page_size, {1, 1}, {150, 65}, false, causal};
      backwards.heads = {4, 2, 64, 64}, backwards.reversed = true;
      cases.push_back(backwards);
      backwards.len_q = {20, 33}, backwards.prefill = true;
      cases.push_back(backwards);
    }
    for (int64_t page_size : {1, 5, 16, 64, 200}) {
      const Layout layout = page_size % 2 ? Layout::kBLHD : Layout::kBHLD;
      const DType index = page_size % 2 ? DType::kInt32 : DType::kInt64;
      const Storage storage = page_size == 16 ? Storage::kPadded : Storage::kContiguous;
      cases.push_back({dtype, page_size, {1, 1, 1, 1}, {0, 1, 63, 200}, false, {}, index, storage, layout});
      cases.push_back({dtype, page_size, {3, 3, 3}, {2, 65, 129}, false, causal, index, storage, layout});
      cases.push_back({dtype, page_size, {1, 1}, {7, 150}, false, window, index, storage, layout});
      cases.push_back({dtype, page_size, {0, 1, 7, 40}, {9, 64, 7, 100}, true, causal, index, storage, layout});
      cases.push_back({dtype, page_size, {33, 2}, {120, 190}, true, window, index, storage, layout});
      cases.push_back({dtype, page_size, {5, 64, 1}, {0, 65, 127}, true, capped, index, storage, layout});
      cases.push_back({dtype, page_size, {2, 2, 2}, {0, 31, 150}, false, masked, index, storage, layout});
      cases.push_back({dtype, page_size, {2, 2}, {90, 3}, false, all, index, storage, layout});
      cases.push_back({dtype, page_size, {3, 0, 20}, {90, 2, 20}, true, all, index, storage, layout});
    }
  }
  return cases;
}

}  // namespace dlattn::test
