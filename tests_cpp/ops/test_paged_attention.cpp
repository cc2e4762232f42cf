// attn_paged_decode and attn_paged_prefill against the definition in double. Pages are scattered; unused pages, page tails
// and keys left of every window hold NaN, unused table entries an absurd id.
#include "ops/ragged.h"

namespace dlattn::test {
namespace {

constexpr int64_t kHeads = 6, kKvHeads = 2, kDim = 40, kDimV = 24, kAbsurd = 0x7fffffff;

struct PagedCase {
  DType dtype;
  int64_t page_size;
  std::vector<int64_t> len_q, len_k;  // decode: all len_q alike
  bool prefill;
  RaggedOptions options = {};
  DType index = DType::kInt32;
  Storage storage = Storage::kContiguous;
  Layout layout = Layout::kBLHD;
};

std::ostream& operator<<(std::ostream& os, const PagedCase& c) {
  os << dtype_name(c.dtype) << " page " << c.page_size << (c.prefill ? " prefill q" : " decode q");
  for (int64_t n : c.len_q) os << " " << n;
  os << " k";
  for (int64_t n : c.len_k) os << " " << n;
  return os << (c.options.is_causal ? " causal" : "") << " window " << c.options.window_left << ","
            << c.options.window_right << (c.layout == Layout::kBLHD ? " blhd " : " bhld ") << dtype_name(c.index);
}

struct Paged {
  explicit Paged(const PagedCase& wanted) : c(wanted), random(11) {
    batch = static_cast<int64_t>(c.len_q.size());
    const int64_t longest = *std::max_element(c.len_k.begin(), c.len_k.end());
    max_pages = (longest + c.page_size - 1) / c.page_size + 2;
    num_pages = batch * max_pages + 1;
    k = Tensor(c.dtype, {num_pages, c.page_size, kKvHeads, kDim}, c.storage);  // all NaN
    v = Tensor(c.dtype, {num_pages, c.page_size, kKvHeads, kDimV}, c.storage);
    table = Tensor(c.index, {batch, max_pages}, c.storage);
    table.fill(kAbsurd);
    std::vector<int64_t> free(static_cast<size_t>(num_pages));
    std::iota(free.begin(), free.end(), 0);
    std::shuffle(free.begin(), free.end(), random);
    std::uniform_real_distribution<double> uniform(-1.5, 1.5);
    for (int64_t b = 0; b < batch; ++b) {
      for (int64_t j = first_key(b); j < len_k(b); ++j) {
        const int64_t page = j / c.page_size;
        if (table.at(b, page) == kAbsurd) {
          table.set(static_cast<double>(free.back()), b, page);
          free.pop_back();
        }
        for (int64_t h = 0; h < kKvHeads; ++h) {
          for (int64_t d = 0; d < kDim; ++d) k.set(uniform(random), id(b, j), j % c.page_size, h, d);
          for (int64_t d = 0; d < kDimV; ++d) v.set(uniform(random), id(b, j), j % c.page_size, h, d);
        }
      }
    }
    cu_q = prefix_sums(c.len_q, 0);
    cu_seqlens_q = index_tensor(c.index, cu_q);
    seqlens_k = index_tensor(c.index, c.len_k);
    // Decode writes [batch, len, ...]: the same memory as packed tokens, which the comparison uses.
    q = Tensor(c.dtype, {cu_q.back(), kHeads, kDim});
    out = Tensor(c.dtype, {cu_q.back(), kHeads, kDimV});
    q.fill_random(random);
    lse = c.prefill ? Tensor(DType::kFloat32, {kHeads, cu_q.back()})
                    : Tensor(DType::kFloat32, {batch, kHeads, c.len_q[0]});
  }

  int64_t len_k(int64_t b) const { return c.len_k[static_cast<size_t>(b)]; }
  int64_t len_q(int64_t b) const { return c.len_q[static_cast<size_t>(b)]; }
  int64_t id(int64_t b, int64_t j) const { return static_cast<int64_t>(table.at(b, j / c.page_size)); }
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
    if (c.prefill) {
      t.cu_seqlens_q = cu_seqlens_q.view();
    } else {
      t.q = batched(t.q);
      t.out = batched(t.out);
    }
    PagedAttentionParams p = make_paged_params(c.prefill ? "attn_paged_prefill" : "attn_paged_decode", t);
    set_options(p.options, c.options);
    return p;
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

  void expect_reference() {
    Tensor packed_lse(DType::kFloat32, {kHeads, cu_q.back()});
    for (int64_t b = 0; b < batch; ++b) {
      for (int64_t i = 0; i < len_q(b); ++i) {
        const int64_t token = cu_q[static_cast<size_t>(b)] + i;
        for (int64_t h = 0; h < kHeads; ++h) packed_lse.set(c.prefill ? lse.at(h, token) : lse.at(b, h, i), h, token);
      }
    }
    for (int64_t b = 0; b < batch; ++b) {
      const int64_t first = cu_q[static_cast<size_t>(b)];
      Sequence s;
      s.len_q = len_q(b), s.len_k = len_k(b);
      s.num_heads = kHeads, s.num_kv_heads = kKvHeads, s.head_dim = kDim, s.head_dim_v = kDimV;
      s.q = [&](int64_t i, int64_t h, int64_t d) { return q.at(first + i, h, d); };
      const auto entry = [&](const Tensor& cache, int64_t j, int64_t h, int64_t d) {  // hidden keys have no page
        return j < first_key(b) ? NAN : cache.at(id(b, j), j % c.page_size, h, d);
      };
      s.k = [&](int64_t j, int64_t h, int64_t d) { return entry(k, j, h, d); };
      s.v = [&](int64_t j, int64_t h, int64_t d) { return entry(v, j, h, d); };
      set_options(s, c.options);
      expect_packed_rows(s, first, out, packed_lse);
    }
  }

  PagedCase c;
  std::mt19937 random;
  int64_t batch, max_pages, num_pages;
  std::vector<int64_t> cu_q;
  Tensor q, k, v, out, lse, table, seqlens_k, cu_seqlens_q;
};

using PagedTest = CpuTestWithParam<PagedCase>;

TEST_P(PagedTest, MatchesTheDefinition) {
  Paged paged(GetParam());
  const PagedAttentionParams p = paged.params();
  const std::vector<unsigned char> clean_out = paged.out.bytes(), clean_lse = paged.lse.bytes();
  expect_same_bits(
      [&] {
        paged.out.restore(clean_out), paged.lse.restore(clean_lse);
        paged.c.prefill ? attn_paged_prefill(p) : attn_paged_decode(p);
      },
      [&] { return joined(paged.out, paged.lse); });
  paged.expect_reference();
  paged.out.expect_gaps_untouched("out");
  paged.lse.expect_gaps_untouched("lse");
}

std::vector<PagedCase> paged_cases() {
  const RaggedOptions causal{true}, window{true, 9, -1}, capped{false, 40, 3, 2.0f};
  std::vector<PagedCase> cases;
  for (DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
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
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Pages, PagedTest, ::testing::ValuesIn(paged_cases()));

}  // namespace
}  // namespace dlattn::test
