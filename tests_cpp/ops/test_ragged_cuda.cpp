// Ragged and paged attention on every kernel of the CUDA backend against the CPU backend.
#include "ops/cuda_attention_cases.h"
#include "ops/cuda_wgmma_cases.h"
#include "ops/kernel_rows.h"
#include "ops/paged_problem.h"
#include "ops/small_cases.h"
#include "ops/varlen_problem.h"

namespace dlattn::test {
namespace {

RaggedOptions all_options(int64_t window_left) {
  return {true, window_left, -1, 4.0f, 0.3f, true, true, RaggedMask::kFloat};
}

// With the head sizes that models have.
template <typename Case>
std::vector<Case> wide(std::vector<Case> cases) {
  const HeadSizes sizes[] = {{4, 4, 64, 64}, {8, 2, 128, 128}, {5, 1, 256, 256}, {4, 2, 192, 128}, {6, 3, 100, 100}};
  for (size_t n = 0; n < cases.size(); ++n) cases[n].heads = sizes[n % 5];
  return cases;
}

using VarlenCudaTest = CudaTestWithParam<VarlenCase>;

TEST_P(VarlenCudaTest, EveryRowMatchesTheCpu) {
  VarlenProblem problem(GetParam());
  expect_every_row(problem, stream());
  problem.expect_rows_outside_untouched();
}

std::vector<VarlenCase> many_sequences_cases() {
  std::vector<VarlenCase> cases;
  std::mt19937 random(4);
  for (DType dtype : kFloatTypes) {
    VarlenCase c{dtype, {}, {}};
    for (int i = 0; i < 300; ++i) {
      c.len_q.push_back(random() % 3 == 0 ? 0 : random() % 40);
      c.len_k.push_back(random() % 5 == 0 ? 0 : random() % 90);
    }
    c.heads = {4, 2, 64, 64};
    cases.push_back(c);
    c.options.is_causal = true, c.index = DType::kInt64, c.heads = {3, 1, 128, 128};
    cases.push_back(c);
    std::fill(c.len_q.begin(), c.len_q.end(), 0);  // all empty but one
    c.len_q[217] = 5;
    cases.push_back(c);
  }
  VarlenCase tokens{DType::kBFloat16, std::vector<int64_t>(70000, 1), std::vector<int64_t>(70000, 1)};
  tokens.heads = {1, 1, 8, 8};
  cases.push_back(tokens);
  return cases;
}

std::vector<VarlenCase> many_keys_varlen_cases() {
  std::vector<VarlenCase> cases;
  for (DType dtype : kFloatTypes) {
    VarlenCase c{dtype, {1, 1, 1, 1}, {5000, 3000, 17, 0}};
    c.heads = {4, 1, 64, 64};
    cases.push_back(c);
    c.len_q = {3, 1, 4, 2}, c.options = all_options(4000);
    cases.push_back(c);
    c.len_q = {40, 1, 0, 200}, c.len_k = {1000, 2000, 5, 900}, c.options = RaggedOptions{true, 300, -1};
    cases.push_back(c);
  }
  return cases;
}

// Sequences of all lengths at the edges of tiles.
std::vector<int64_t> edge_rows() { return {std::begin(kEdgeRows), std::end(kEdgeRows)}; }
std::vector<int64_t> edge_keys() {
  std::vector<int64_t> keys;
  for (size_t n = 0; n < std::size(kEdgeRows); ++n) keys.push_back(kEdgeKeys[5 * n % std::size(kEdgeKeys)]);
  return keys;
}
const HeadSizes kEdgeHeads[] = {{2, 2, 65, 72}, {2, 2, 128, 128}, {1, 1, 200, 129}, {1, 1, 256, 256},
                                {3, 3, 36, 63}, {2, 1, 64, 64},   {2, 2, 40, 48}};

std::vector<VarlenCase> edge_varlen_cases() {
  std::vector<VarlenCase> cases;
  for (DType dtype : kFloatTypes) {
    for (const HeadSizes& heads : kEdgeHeads) {
      const RaggedOptions options{cases.size() % 2 == 1};  // causal
      cases.push_back({dtype, edge_rows(), edge_keys(), options, DType::kInt32, Storage::kContiguous, heads});
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Edges, VarlenCudaTest, ::testing::ValuesIn(edge_varlen_cases()));
INSTANTIATE_TEST_SUITE_P(Small, VarlenCudaTest, ::testing::ValuesIn(small_varlen_cases()));
INSTANTIATE_TEST_SUITE_P(Ragged, VarlenCudaTest, ::testing::ValuesIn(varlen_cases()));
INSTANTIATE_TEST_SUITE_P(Wide, VarlenCudaTest, ::testing::ValuesIn(wide(varlen_cases())));
INSTANTIATE_TEST_SUITE_P(ManySequences, VarlenCudaTest, ::testing::ValuesIn(many_sequences_cases()));
INSTANTIATE_TEST_SUITE_P(ManyKeys, VarlenCudaTest, ::testing::ValuesIn(many_keys_varlen_cases()));

using PagedCudaTest = CudaTestWithParam<PagedCase>;

TEST_P(PagedCudaTest, EveryRowMatchesTheCpu) {
  PagedProblem problem(GetParam());
  expect_every_row(problem, stream());
}

std::vector<PagedCase> many_keys_paged_cases() {
  std::vector<PagedCase> cases;
  const RaggedOptions causal{true}, window{true, 700, -1};
  size_t n = 0;
  for (DType dtype : kFloatTypes) {
    for (int64_t page_size : {1, 3, 16, 33, 128}) {
      const Layout layout = n % 2 ? Layout::kBLHD : Layout::kBHLD;
      const DType index = n % 3 ? DType::kInt32 : DType::kInt64;
      const Storage storage = n % 4 == 3 ? Storage::kShifted : Storage::kContiguous;
      const HeadSizes heads = n % 5 == 4 ? HeadSizes{4, 1, 256, 256} : HeadSizes{4, 1, n % 2 ? 64 : 128, 64};
      ++n;
      cases.push_back({dtype, page_size, {1, 1, 1, 1}, {5000, 3000, 17, 0}, false, {}, index, storage, layout, heads});
      cases.push_back({dtype, page_size, {2, 2}, {3000, 40}, false, window, index, storage, layout, heads});
      cases.push_back({dtype, page_size, {3, 3}, {5000, 1}, false, all_options(4000), index, storage, layout, heads});
      cases.push_back(
          {dtype, page_size, {1, 0, 70, 5}, {2500, 9, 600, 5}, true, causal, index, storage, layout, heads});
      cases.push_back({dtype, page_size, {4, 40}, {2000, 1500}, true, all_options(900), index, storage, layout, heads});
    }
  }
  return cases;
}

std::vector<PagedCase> edge_paged_cases() {
  std::vector<PagedCase> cases;
  for (DType dtype : kFloatTypes) {
    for (const HeadSizes& heads : kEdgeHeads) {
      const int64_t page_size = cases.size() % 2 == 0 ? 16 : 33;
      PagedCase c{dtype, page_size, edge_rows(), edge_keys(), true, RaggedOptions{cases.size() % 2 == 1}};
      c.heads = heads;
      cases.push_back(c);
    }
  }
  return cases;
}

// As grouped_cases(), each with the other dtype.
std::vector<PagedCase> grouped_paged_cases() {
  std::vector<PagedCase> cases;
  const int64_t page_sizes[] = {1, 3, 16, 64};
  size_t n = 0;
  for (int64_t group = 1; group <= 16; ++group) {
    for (int64_t seqlen_q : kGroupQueries) {
      const DType dtype = (n + n / 6) % 2 ? DType::kBFloat16 : DType::kFloat16;
      const RaggedOptions options{n % 4 != 3, n % 5 == 2 ? 40 : -1, -1};
      PagedCase c{dtype,
                  page_sizes[(n + n / 4) % 4],
                  std::vector<int64_t>(3, seqlen_q),
                  some_edge_lengths(n, 3),
                  false,
                  options,
                  n % 3 == 0 ? DType::kInt64 : DType::kInt32};
      c.layout = n % 2 ? Layout::kBHLD : Layout::kBLHD;
      c.storage = n % 7 == 1 ? Storage::kSpaced : Storage::kContiguous;
      const int64_t kv_heads = n % 3 == 1 && group <= 6 ? 2 : 1;
      c.heads = {group * kv_heads, kv_heads, kDecodeDims[n % 7][0], kDecodeDims[n % 7][1]};
      ++n;
      cases.push_back(c);
    }
  }
  return cases;
}

// Ragged rows of several heads in a tile, against pages of any size.
const std::vector<int64_t> kRaggedRows = {33, 1, 0, 65, 16, 128}, kRaggedKeys = {64, 130, 9, 65, 0, 257};

std::vector<PagedCase> grouped_paged_prefill_cases() {
  std::vector<PagedCase> cases;
  const RaggedOptions options[] = {RaggedOptions{true}, RaggedOptions{true, 64, -1}, RaggedOptions{false, 31, 40}};
  size_t n = 0;
  for (DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    for (int64_t page_size : {1, 3, 16, 64}) {
      for (int64_t group : {2, 3, 5}) {
        PagedCase c{dtype, page_size, kRaggedRows, kRaggedKeys, true, options[n % 3]};
        c.index = n % 2 ? DType::kInt64 : DType::kInt32;
        c.heads = {group, 1, kDecodeDims[n % 7][0], kDecodeDims[n % 7][1]};
        ++n;
        cases.push_back(c);
      }
    }
  }
  return cases;
}

std::vector<VarlenCase> grouped_varlen_cases() {
  std::vector<VarlenCase> cases;
  size_t n = 0;
  for (DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    for (int64_t group : {1, 2, 3, 4, 5}) {
      const RaggedOptions options{n % 2 == 0, n % 3 == 0 ? 64 : -1, -1};
      VarlenCase c{dtype, kRaggedRows, kRaggedKeys, options, n % 2 ? DType::kInt64 : DType::kInt32};
      c.storage = n % 3 == 1 ? Storage::kSpaced : Storage::kContiguous;
      c.heads = {group, 1, kDecodeDims[(n + 2) % 7][0], kDecodeDims[(n + 2) % 7][1]};
      ++n;
      cases.push_back(c);
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Grouped, VarlenCudaTest, ::testing::ValuesIn(grouped_varlen_cases()));
INSTANTIATE_TEST_SUITE_P(Grouped, PagedCudaTest, ::testing::ValuesIn(grouped_paged_cases()));
INSTANTIATE_TEST_SUITE_P(GroupedPrefill, PagedCudaTest, ::testing::ValuesIn(grouped_paged_prefill_cases()));
INSTANTIATE_TEST_SUITE_P(Edges, PagedCudaTest, ::testing::ValuesIn(edge_paged_cases()));
INSTANTIATE_TEST_SUITE_P(Small, PagedCudaTest, ::testing::ValuesIn(small_paged_cases()));
INSTANTIATE_TEST_SUITE_P(Pages, PagedCudaTest, ::testing::ValuesIn(paged_cases()));
INSTANTIATE_TEST_SUITE_P(Wide, PagedCudaTest, ::testing::ValuesIn(wide(paged_cases())));
INSTANTIATE_TEST_SUITE_P(ManyKeys, PagedCudaTest, ::testing::ValuesIn(many_keys_paged_cases()));
INSTANTIATE_TEST_SUITE_P(Wgmma, VarlenCudaTest, ::testing::ValuesIn(wgmma_varlen_cases()));
INSTANTIATE_TEST_SUITE_P(Wgmma, PagedCudaTest, ::testing::ValuesIn(wgmma_paged_cases()));

// Sequences whose tensors are NaN between sequences that are not: tiles of rows and keys reach into both.
class RaggedCudaRulesTest : public CudaTest {};

TEST_F(RaggedCudaRulesTest, NanOfNeighboursStaysThere) {
  const HeadSizes heads[] = {{2, 1, 64, 64}, {4, 2, 128, 128}, {2, 1, 192, 128}, {1, 1, 256, 256}};
  for (size_t n = 0; n < 4; ++n) {
    VarlenCase c{kHalfTypes[n % 2], {40, 130, 7, 65, 1, 129}, {97, 130, 33, 200, 5, 129}, RaggedOptions{n % 2 == 0}};
    c.heads = heads[n];
    SCOPED_TRACE(::testing::Message() << c);
    VarlenProblem problem(c);
    const auto poison = [](Tensor& t, int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        for (int64_t h = 0; h < t.size(1); ++h) {
          for (int64_t d = 0; d < t.size(2); ++d) t.set(NAN, i, h, d);
        }
      }
    };
    for (size_t b = 1 - n / 2; b < c.len_q.size(); b += 2) {
      poison(problem.q, problem.cu_q[b], problem.cu_q[b + 1]);
      poison(problem.k, problem.cu_k[b], problem.cu_k[b + 1]);
      poison(problem.v, problem.cu_k[b], problem.cu_k[b + 1]);
    }
    expect_every_row(problem, stream());
    problem.expect_rows_outside_untouched();
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace dlattn::test
