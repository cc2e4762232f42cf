// Few and small cases of attention that reach every row of the kernel table with every dtype, and the head sizes of most: what
// the sanitizers run, under which a kernel is 10 to 100 times slower.
#pragma once

#include <vector>

#include "ops/attention_cases.h"
#include "ops/paged_problem.h"
#include "ops/varlen_problem.h"

namespace dlattn::test {

// The mma kernels: each tile in its full width, without and with what only the rows with options take. Of the two dtypes
// one is dense where the other is paged. Then keys that are split, for one tile of rows.
inline std::vector<AttentionCase> small_mma_dense_cases() {
  std::vector<AttentionCase> cases;
  AttentionCase plain;
  plain.batch_size = 1, plain.seqlen_q = 19, plain.seqlen_k = 81, plain.num_heads = 2, plain.num_kv_heads = 1;
  plain.is_causal = true;
  plain.dtype = DType::kFloat16;
  for (int64_t dim : {64, 96, 128, 192, 256}) {
    plain.head_dim = plain.head_dim_v = dim;
    cases.push_back(plain);
  }
  AttentionCase options = plain;
  options.dtype = DType::kBFloat16;
  options.mask = MaskKind::kFloat4D, options.softcap = 5.0f, options.alibi_axes = 1, options.sinks = true;
  for (int64_t dim : {64, 128, 256}) {
    options.head_dim = options.head_dim_v = dim;
    cases.push_back(options);
  }
  AttentionCase split = plain;
  split.seqlen_q = 5, split.seqlen_k = 1500, split.head_dim = split.head_dim_v = 64;
  cases.push_back(split);
  return cases;
}

inline std::vector<PagedCase> small_mma_paged_cases() {
  std::vector<PagedCase> cases;
  const RaggedOptions causal{true}, all{true, 70, 2, 3.0f, 0.4f, true, true, RaggedMask::kBool};
  PagedCase plain{DType::kBFloat16, 5, {3, 20}, {40, 81}, true, causal};
  for (int64_t dim : {64, 96, 128, 192, 256}) {
    plain.heads = {2, 1, dim, dim};
    cases.push_back(plain);
  }
  PagedCase options{DType::kFloat16, 16, {20, 3}, {81, 40}, true, all, DType::kInt64};
  for (int64_t dim : {64, 128, 256}) {
    options.heads = {2, 1, dim, dim};
    cases.push_back(options);
  }
  PagedCase split{DType::kBFloat16, 16, {5}, {1500}, false, causal, DType::kInt64};
  split.heads = {2, 1, 64, 64};
  cases.push_back(split);
  return cases;
}

// The wgmma kernels, which take no mask and no pages of 5 keys: each tile in its full width, several of queries and of keys, a
// softcap in all that take one (small heads reach every tile). Then keys that are split. Items that are done again:
// small_score_cases().
inline std::vector<AttentionCase> small_wgmma_dense_cases() {
  std::vector<AttentionCase> cases;
  AttentionCase c;
  c.batch_size = 1, c.seqlen_k = 261, c.num_heads = 2, c.num_kv_heads = 1, c.is_causal = true;
  for (DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    c.dtype = dtype, c.softcap = 0.0f, c.sinks = false, c.window_left = -1;
    for (int64_t dim : {64, 96, 128, 192, 256}) {
      c.head_dim = c.head_dim_v = dim, c.seqlen_q = dim == 64 ? 193 : 129;
      cases.push_back(c);
    }
    c.seqlen_q = 193;
    c.softcap = 5.0f, c.sinks = true, c.window_left = 200, c.head_dim = c.head_dim_v = 40;
    cases.push_back(c);
    AttentionCase split = c;
    split.seqlen_q = 65, split.seqlen_k = 1100, split.num_heads = 1, split.window_left = -1;
    cases.push_back(split);
  }
  return cases;
}

// Lengths that end in the middle of a tile: what v holds behind them becomes 0.
inline std::vector<PagedCase> small_wgmma_paged_cases() {
  std::vector<PagedCase> cases;
  PagedCase c{DType::kFloat16, 24, {3, 197}, {40, 200}, true, RaggedOptions{true}, DType::kInt64};
  c.heads = {1, 1, 64, 64};
  cases.push_back(c);
  c.dtype = DType::kBFloat16, c.page_size = 64, c.options.window_left = 100, c.layout = Layout::kBHLD;
  cases.push_back(c);
  return cases;
}

inline std::vector<AttentionCase> small_dense_cases() {
  AttentionCase decode, prefill;
  decode.seqlen_q = 1, decode.seqlen_k = 300, decode.lengths = true, decode.len_k = {300, 41};  // 300: several splits
  prefill.seqlen_q = 37, prefill.seqlen_k = 70, prefill.is_causal = true;
  std::vector<AttentionCase> cases{decode, decode, decode, prefill, prefill, prefill};
  const int64_t dims[] = {64, 128, 256, 128, 64, 256};
  for (size_t n = 0; n < 6; ++n) {
    cases[n].dtype = kFloatTypes[n % 3];
    cases[n].head_dim = cases[n].head_dim_v = dims[n];
  }
  cases[1].storage = Storage::kShifted, cases[1].seqlen_q = 4;
  cases[2].window_left = 200;
  cases[4].storage = Storage::kPadded, cases[4].head_dim_v = 33, cases[4].window_left = 20;
  cases[5].lengths = true, cases[5].len_k = {70, 0}, cases[5].mask = MaskKind::kFloat4D, cases[5].softcap = 5.0f;
  cases[5].sinks = true, cases[5].alibi_axes = 2;
  for (const AttentionCase& c : small_mma_dense_cases()) cases.push_back(c);
  for (const AttentionCase& c : small_wgmma_dense_cases()) cases.push_back(c);
  return cases;
}

inline std::vector<VarlenCase> small_varlen_cases() {
  const RaggedOptions causal{true}, all{true, 30, 2, 3.0f, 0.4f, true, true, RaggedMask::kFloat};
  return {{DType::kFloat32, {5, 0, 33}, {65, 7, 40}, causal, DType::kInt32, Storage::kContiguous, {4, 2, 256, 256}},
          {DType::kFloat16, {3, 20, 1}, {90, 20, 7}, all, DType::kInt64, Storage::kPadded},
          {DType::kBFloat16, {1, 1, 1}, {300, 0, 5}, {}, DType::kInt32, Storage::kContiguous, {8, 2, 64, 64}},
          {DType::kFloat16, {3, 0, 196}, {9, 5, 200}, causal, DType::kInt32, Storage::kContiguous, {2, 1, 64, 64}},
          {DType::kBFloat16, {196, 0, 3}, {200, 5, 9}, causal, DType::kInt64, Storage::kSpaced, {2, 1, 64, 64}}};
}

inline std::vector<PagedCase> small_paged_cases() {
  const RaggedOptions causal{true}, all{true, 70, 2, 3.0f, 0.4f, true, true, RaggedMask::kFloat};
  std::vector<PagedCase> cases = {
      {DType::kFloat32, 16, {2, 2}, {90, 3}, false, all, DType::kInt32, Storage::kContiguous, Layout::kBHLD},
      {DType::kFloat16,
       5,
       {1, 0, 20},
       {150, 9, 20},
       true,
       causal,
       DType::kInt64,
       Storage::kContiguous,
       Layout::kBLHD,
       {4, 2, 256, 256}},
      {DType::kBFloat16,
       33,
       {1, 1},
       {300, 20},
       false,
       {},
       DType::kInt32,
       Storage::kShifted,
       Layout::kBLHD,
       {8, 2, 128, 128}}};
  for (const PagedCase& c : small_mma_paged_cases()) cases.push_back(c);
  for (const PagedCase& c : small_wgmma_paged_cases()) cases.push_back(c);
  return cases;
}

}  // namespace dlattn::test
