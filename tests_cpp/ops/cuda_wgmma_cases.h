// Cases for the tiles of the wgmma kernels: 64, 128 or 192 rows of one head, 64 in each group, 80 to 128 keys, boxes of a page's rows,
// keys that are split where SMs would be idle, and more work items than SMs. Other families run them, too.
#pragma once

#include <algorithm>
#include <iterator>
#include <vector>

#include "ops/attention_cases.h"
#include "ops/paged_problem.h"
#include "ops/varlen_problem.h"

namespace dlattn::test {

constexpr DType kHalfTypes[] = {DType::kFloat16, DType::kBFloat16};

// Queries and keys around the edges of tiles and of groups of rows. All else changes at paces of its own: options, windows
// whose edges are those of tiles, head sizes from 8 to 256, groups of heads, layouts.
inline std::vector<AttentionCase> wgmma_tile_cases() {
  const int64_t queries[] = {63, 64, 65, 127, 128, 129, 191, 192, 193};
  const int64_t keys[] = {79, 80, 81, 63, 65, 111, 112, 113, 127, 128, 129, 160, 224, 255, 257, 1000};
  const int64_t dims[][2] = {{64, 64},   {128, 128}, {8, 8},     {192, 128}, {24, 8},    {256, 256}, {40, 40},
                             {96, 72},   {128, 40},  {56, 24},   {256, 64},  {72, 72},   {88, 64},   {104, 16},
                             {192, 192}, {120, 120}, {136, 8},   {96, 96},   {152, 152}, {168, 40},  {64, 64},
                             {184, 184}, {200, 136}, {128, 128}, {216, 216}, {232, 64},  {248, 248}};
  const int64_t windows[][2] = {{-1, -1}, {-1, 0},   {63, 0},  {64, 0}, {-1, -1}, {95, 0},   {127, 0}, {128, 0},
                                {-1, 0},  {64, 128}, {129, 0}, {0, 95}, {33, 63}, {300, 200}};  // right 0: causal
  const int64_t groups[] = {1, 2, 3, 6, 8};
  const float softcaps[] = {0.0f, 0.0f, 30.0f, 0.0f, 0.5f, 0.0f, 50.0f};
  const Storage storages[] = {Storage::kContiguous, Storage::kSpaced, Storage::kSwapped};
  std::vector<AttentionCase> cases;
  for (size_t n = 0; n < 45; ++n) {
    AttentionCase c;
    c.op = AttentionOp::kPrefill, c.dtype = kHalfTypes[(n + n / 16) % 2], c.batch_size = 1;
    c.seqlen_q = queries[n % 9], c.seqlen_k = keys[(n + n / 16) % 16];
    c.head_dim = dims[n % 27][0], c.head_dim_v = dims[n % 27][1];
    c.num_kv_heads = 1, c.num_heads = groups[(n + n / 5) % 5];
    const auto& window = windows[(n + n / 27) % 14];
    c.is_causal = window[1] == 0, c.window_left = window[0], c.window_right = c.is_causal ? -1 : window[1];
    c.softcap = softcaps[(n + n / 27) % 7], c.sinks = n % 4 == 1;
    c.storage = storages[n % 3], c.out_storage = storages[n / 3 % 3];
    c.layout = n / 2 % 2 ? Layout::kBHLD : Layout::kBLHD;
    cases.push_back(c);
  }
  // Rows that see nothing: some of a tile, a whole group of 64, whole tiles.
  const int64_t blind[][2] = {{193, 64}, {257, 100}, {300, 40}, {130, 1}};
  for (const auto& lengths : blind) {
    AttentionCase c;
    c.dtype = kHalfTypes[cases.size() % 2], c.batch_size = 1, c.num_heads = 2, c.num_kv_heads = 1;
    c.head_dim = c.head_dim_v = 64, c.is_causal = true;
    c.seqlen_q = lengths[0], c.seqlen_k = lengths[1], c.sinks = lengths[1] == 100;
    cases.push_back(c);
  }
  return cases;
}

// The same for heads up to 64, whose tiles are 192 queries and 128 keys, with a softcap 96, or 64 and 80.
inline std::vector<AttentionCase> wgmma_small_head_cases() {
  const int64_t queries[] = {191, 192, 193, 64, 65, 385, 63, 128, 129, 384, 127};
  const int64_t keys[] = {79, 80, 81, 95, 96, 97, 127, 128, 129, 159, 160, 161, 191, 193, 256, 257, 385};
  const int64_t dims[][2] = {{64, 64}, {48, 40}, {64, 16}, {56, 56}, {8, 64}};
  const int64_t windows[][2] = {{-1, -1},  {-1, 0}, {80, 0},   {-1, -1}, {127, 0},
                                {96, 160}, {81, 0}, {128, 64}, {0, 95}};  // right 0: causal
  std::vector<AttentionCase> cases;
  for (size_t n = 0; n < 51; ++n) {
    AttentionCase c;
    c.op = AttentionOp::kPrefill, c.dtype = kHalfTypes[(n + n / 17) % 2], c.batch_size = 1;
    c.seqlen_q = queries[n % 11], c.seqlen_k = keys[n % 17];
    c.head_dim = dims[n % 5][0], c.head_dim_v = dims[n % 5][1];
    c.num_kv_heads = 1, c.num_heads = 1 + static_cast<int64_t>(n % 3);
    const auto& window = windows[n % 9];
    c.is_causal = window[1] == 0, c.window_left = window[0], c.window_right = c.is_causal ? -1 : window[1];
    c.softcap = n % 4 == 3 ? 30.0f : 0.0f, c.sinks = n % 7 == 2;
    cases.push_back(c);
  }
  return cases;
}

// Lengths around the tiles of keys, with NaN behind them.
inline std::vector<AttentionCase> wgmma_length_cases() {
  std::vector<AttentionCase> cases;
  const std::vector<int64_t> lengths[] = {
      {0, 1, 63, 65, 95, 97, 127, 129}, {300, 128, 191, 193, 255, 257, 1, 0}, {111, 112, 113, 223, 224, 225, 297, 0}};
  for (size_t n = 0; n < 6; ++n) {
    AttentionCase c;
    c.op = AttentionOp::kPrefill, c.dtype = kHalfTypes[n % 2], c.batch_size = 8, c.seqlen_k = 300;
    c.seqlen_q = n < 4 ? 130 : 193;
    c.num_heads = 2, c.num_kv_heads = 1, c.is_causal = n % 2 == 0, c.lengths = true, c.len_k = lengths[n / 2];
    c.head_dim = c.head_dim_v = n == 3 ? 128 : 64, c.softcap = n == 2 || n == 5 ? 30.0f : 0.0f;
    cases.push_back(c);
  }
  return cases;
}

// Few tiles and many keys, in so many parts that each SM gets one.
inline std::vector<AttentionCase> wgmma_split_cases() {
  AttentionCase base;
  base.op = AttentionOp::kPrefill, base.dtype = DType::kBFloat16, base.batch_size = 1;
  base.seqlen_q = 64, base.seqlen_k = 5000, base.num_heads = base.num_kv_heads = 1;
  base.head_dim = base.head_dim_v = 64;
  std::vector<AttentionCase> cases(8, base);
  cases[1].num_heads = 2, cases[1].is_causal = true, cases[1].dtype = DType::kFloat16;
  cases[2].is_causal = true, cases[2].window_left = 3000, cases[2].head_dim = cases[2].head_dim_v = 128;
  cases[3].window_left = 700, cases[3].window_right = 600, cases[3].sinks = true, cases[3].seqlen_q = 200;
  cases[4].seqlen_q = 130, cases[4].is_causal = true, cases[4].head_dim = 192, cases[4].head_dim_v = 128;
  cases[5].head_dim = cases[5].head_dim_v = 256, cases[5].seqlen_k = 2777, cases[5].sinks = true;
  cases[6].batch_size = 7, cases[6].lengths = true, cases[6].len_k = {5000, 1023, 1025, 0, 4321, 895, 897};
  cases[6].dtype = DType::kFloat16, cases[6].softcap = 30.0f, cases[6].head_dim_v = 40;
  cases[7].batch_size = 2, cases[7].lengths = true, cases[7].len_k = {60, 3333}, cases[7].is_causal = true;
  cases[7].num_heads = 3, cases[7].seqlen_q = 190, cases[7].head_dim = cases[7].head_dim_v = 104;
  return cases;
}

// More items than thread blocks: a counter hands them out.
inline std::vector<AttentionCase> wgmma_items_cases() {
  AttentionCase base;
  base.op = AttentionOp::kPrefill, base.dtype = DType::kBFloat16, base.is_causal = true;
  std::vector<AttentionCase> cases(7, base);
  cases[0].batch_size = 5, cases[0].num_heads = 24, cases[0].num_kv_heads = 8;
  cases[0].seqlen_q = 200, cases[0].seqlen_k = 333, cases[0].head_dim = cases[0].head_dim_v = 128;
  cases[1].batch_size = 2, cases[1].num_heads = 32, cases[1].num_kv_heads = 4, cases[1].dtype = DType::kFloat16;
  cases[1].seqlen_q = 385, cases[1].seqlen_k = 500, cases[1].head_dim = cases[1].head_dim_v = 64;
  cases[1].softcap = 50.0f;
  cases[2].batch_size = 1, cases[2].num_heads = 8, cases[2].num_kv_heads = 1, cases[2].window_left = 100;
  cases[2].seqlen_q = cases[2].seqlen_k = 2200, cases[2].head_dim = 192, cases[2].head_dim_v = 128;
  cases[3].batch_size = 6, cases[3].num_heads = 16, cases[3].num_kv_heads = 8, cases[3].is_causal = false;
  cases[3].seqlen_q = 300, cases[3].seqlen_k = 200, cases[3].head_dim = cases[3].head_dim_v = 64;
  for (size_t n = 4; n < 7; ++n) {  // beyond 2048 keys the groups take no turns
    cases[n].batch_size = 1, cases[n].seqlen_q = cases[n].seqlen_k = 2177, cases[n].dtype = kHalfTypes[n % 2];
    cases[n].num_heads = n == 4 ? 8 : 12, cases[n].num_kv_heads = n == 4 ? 1 : 4;
    cases[n].head_dim = cases[n].head_dim_v = n == 4 ? 128 : 64;
  }
  cases[4].window_left = 100, cases[5].window_left = 700, cases[6].softcap = 20.0f;
  return cases;
}

// Empty sequences, single tokens, tiles that end inside the next sequence.
inline std::vector<VarlenCase> wgmma_varlen_cases() {
  const std::vector<int64_t> len_q = {0, 1, 64, 129, 0, 1, 193, 65, 128, 1, 192, 66, 0};
  const std::vector<int64_t> len_k = {5, 1, 65, 129, 0, 97, 193, 64, 300, 257, 224, 113, 0};
  const HeadSizes heads[] = {{2, 1, 64, 64}, {8, 2, 128, 128}, {3, 1, 192, 128}, {2, 2, 256, 256}, {6, 1, 40, 24}};
  RaggedOptions options[] = {RaggedOptions{true}, RaggedOptions{}, RaggedOptions{true, 64, -1},
                             RaggedOptions{false, 31, 96}, RaggedOptions{true, -1, -1, 30.0f}};
  options[1].sinks = options[4].sinks = true;
  const Storage storages[] = {Storage::kContiguous, Storage::kSwapped, Storage::kSpaced};
  std::vector<VarlenCase> cases;
  for (size_t n = 0; n < 5; ++n) {
    VarlenCase c{kHalfTypes[n % 2], len_q, len_k, options[n]};
    c.index = n % 2 ? DType::kInt64 : DType::kInt32, c.storage = storages[n % 3], c.heads = heads[n];
    cases.push_back(c);
  }
  VarlenCase split{DType::kBFloat16, {64, 0, 1}, {3000, 7, 2000}, RaggedOptions{true}};
  split.heads = {2, 1, 64, 64};
  cases.push_back(split);
  return cases;
}

// Pages that are boxes of 8 to 128 rows, or larger than a tile; of 100 keys some families take none.
inline std::vector<PagedCase> wgmma_paged_cases() {
  const int64_t page_sizes[] = {8, 16, 24, 32, 48, 64, 100, 128, 256};
  const HeadSizes heads[] = {{2, 1, 64, 64}, {3, 1, 128, 128}, {2, 2, 192, 128}, {8, 1, 64, 40}, {1, 1, 256, 256}};
  RaggedOptions options[] = {RaggedOptions{true}, RaggedOptions{true, 64, -1}, RaggedOptions{},
                             RaggedOptions{true, 131, -1, 30.0f}};
  options[2].sinks = true;
  std::vector<PagedCase> cases;
  for (size_t n = 0; n < 9; ++n) {
    PagedCase c{kHalfTypes[n % 2],          page_sizes[n], {70, 1, 0, 129, 65, 193},
                {97, 385, 65, 255, 0, 225}, true,          options[n % 4]};
    c.index = n % 2 ? DType::kInt64 : DType::kInt32, c.layout = n / 2 % 2 ? Layout::kBHLD : Layout::kBLHD;
    c.storage = n % 3 == 1 ? Storage::kSpaced : Storage::kContiguous, c.heads = heads[n % 5];
    cases.push_back(c);
  }
  // Boxes of tiles of 80 keys: a whole one, and 40, 20 and 10 rows, of which the last two are no whole swizzles and no box of
  // 128 keys; of 112 keys: 14 rows.
  for (int64_t page_size : {80, 40, 20, 10, 14}) {
    PagedCase c{kHalfTypes[cases.size() % 2], page_size, {70, 193}, {337, 225}, true, RaggedOptions{true}};
    c.heads = page_size == 14 ? HeadSizes{2, 1, 192, 128} : HeadSizes{2, 1, 64, 64};
    cases.push_back(c);
  }
  PagedCase split{DType::kBFloat16, 16, {64}, {4999}, true, RaggedOptions{true}};
  split.heads = {2, 1, 64, 64};
  cases.push_back(split);
  split.page_size = 24, split.options = RaggedOptions{true, 3000, -1}, split.heads = {1, 1, 128, 128};
  cases.push_back(split);
  split.page_size = 64, split.prefill = false, split.len_q = {40, 40},
  split.len_k = {700, 2333};  // one length of queries
  cases.push_back(split);
  PagedCase items{DType::kFloat16, 32, {}, {}, true, RaggedOptions{true}, DType::kInt64};  // more than SMs
  for (int64_t b = 0; b < 20; ++b) {
    items.len_q.push_back(b % 7 == 3 ? 0 : b * 37 % 250), items.len_k.push_back(b * 53 % 290 + b * 37 % 250);
  }
  items.heads = {8, 2, 64, 64};
  cases.push_back(items);
  return cases;
}

}  // namespace dlattn::test
