// Dense cases that only the CUDA kernels need: large grids, many keys (splits), the head sizes of the fast paths, rows that
// are not aligned.
#pragma once

#include <algorithm>
#include <iterator>
#include <vector>

#include "ops/attention_cases.h"

namespace dlattn::test {

// The options' and layouts' cases with the head sizes that models have.
inline std::vector<AttentionCase> wide_cases() {
  std::vector<AttentionCase> cases;
  const int64_t dims[][2] = {{64, 64}, {128, 128}, {256, 256}, {192, 128}, {100, 100}};
  size_t n = 0;
  for (const std::vector<AttentionCase>& some : {option_cases(), layout_cases()}) {
    for (AttentionCase c : some) {
      c.head_dim = dims[n % 5][0], c.head_dim_v = dims[n % 5][1];
      c.dtype = kFloatTypes[n / 5 % 3];
      ++n;
      cases.push_back(c);
    }
  }
  return cases;
}

// Rows that start at any element, or whose strides are no multiple of 16 bytes.
inline std::vector<AttentionCase> unaligned_cases() {
  std::vector<AttentionCase> cases;
  for (DType dtype : kFloatTypes) {
    for (int64_t dim : {64, 100, 128, 256}) {
      for (Storage storage : {Storage::kPadded, Storage::kShifted}) {
        for (int64_t seqlen_q : {1, 37}) {
          AttentionCase c;
          c.dtype = dtype, c.head_dim = c.head_dim_v = dim, c.storage = storage;
          c.seqlen_q = seqlen_q, c.seqlen_k = 190, c.is_causal = true;
          cases.push_back(c);
        }
      }
    }
  }
  return cases;
}

// 1 to 17 queries and 1 to 16 query heads to a kv head, over enough keys for several splits.
inline std::vector<AttentionCase> group_cases() {
  std::vector<AttentionCase> cases;
  for (DType dtype : kFloatTypes) {
    for (int64_t n = 1; n <= 17; ++n) {
      AttentionCase c;
      c.dtype = dtype, c.seqlen_k = 700, c.head_dim = c.head_dim_v = n % 2 ? 64 : 128, c.is_causal = true;
      c.seqlen_q = n, c.num_heads = 6, c.num_kv_heads = 2;
      cases.push_back(c);
      c.seqlen_q = 1, c.num_heads = 2 * n, c.lengths = n % 3 == 0;
      cases.push_back(c);
    }
    for (int64_t group : {32, 64, 128}) {
      AttentionCase c;
      c.dtype = dtype, c.batch_size = 1, c.seqlen_q = 2, c.seqlen_k = 300, c.num_heads = group, c.num_kv_heads = 1;
      c.head_dim = c.head_dim_v = 128;
      cases.push_back(c);
    }
  }
  return cases;
}

// A long cache, also with lengths from 0 on, windows that cut the splits, and all options.
inline std::vector<AttentionCase> many_keys_cases() {
  std::vector<AttentionCase> cases;
  for (DType dtype : kFloatTypes) {
    AttentionCase base;
    base.dtype = dtype, base.op = AttentionOp::kDecode;
    base.batch_size = 4, base.seqlen_q = 1, base.seqlen_k = 5000, base.num_heads = 4, base.num_kv_heads = 1;
    base.lengths = true, base.len_k = {5000, 3000, 17, 0};
    for (int64_t dim : {64, 80, 96, 128, 192, 256, 100}) {
      AttentionCase c = base;
      c.head_dim = c.head_dim_v = dim;
      cases.push_back(c);
    }
    base.head_dim = base.head_dim_v = 64;
    std::vector<AttentionCase> some(7, base);
    some[0].lengths = false, some[0].batch_size = 1;
    some[1].window_left = 1234;
    some[2].window_left = 100, some[2].seqlen_q = 4, some[2].is_causal = true;
    some[3].window_left = 0, some[3].window_right = 0;
    some[4].window_left = 2600, some[4].window_right = 1, some[4].seqlen_q = 3, some[4].sinks = true;
    some[5].seqlen_q = 2, some[5].mask = MaskKind::kFloat4D, some[5].is_causal = true, some[5].sinks = true;
    some[5].alibi_axes = 2, some[5].softcap = 5.0f, some[5].window_left = 4000, some[5].scale = 0.2f;
    some[6].mask = MaskKind::kBool2D, some[6].head_dim = some[6].head_dim_v = 128;
    cases.insert(cases.end(), some.begin(), some.end());
    for (int64_t seqlen_k : {127, 128, 129, 1023, 1025, 2047, 2049, 4096}) {
      AttentionCase c = base;
      c.batch_size = 1, c.lengths = false, c.len_k = {}, c.seqlen_k = seqlen_k, c.head_dim_v = 72;
      cases.push_back(c);
    }
  }
  return cases;
}

inline std::vector<AttentionCase> many_queries_cases() {
  std::vector<AttentionCase> cases;
  for (DType dtype : kFloatTypes) {
    for (int64_t dim : {64, 128, 256}) {
      AttentionCase c;
      c.dtype = dtype, c.batch_size = 1, c.num_heads = 2, c.num_kv_heads = 1, c.head_dim = c.head_dim_v = dim;
      c.seqlen_q = 900, c.seqlen_k = 1100, c.is_causal = true;
      cases.push_back(c);
      c.seqlen_q = 777, c.seqlen_k = 513, c.is_causal = false, c.window_left = 200, c.window_right = 100;
      cases.push_back(c);
    }
  }
  return cases;
}

// One row, key or column less and more than what the kernels' tiles and their parts hold.
const int64_t kEdgeRows[] = {15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129};
const int64_t kEdgeKeys[] = {31, 32, 33, 47, 48, 49, 63, 64, 65, 127, 128, 129};

// Every number of rows with every number of keys; head sizes and causality change at other paces.
inline std::vector<AttentionCase> edge_cases() {
  std::vector<AttentionCase> cases;
  const int64_t dims[] = {31, 32, 36, 48, 63, 64, 65, 72, 96, 127, 128, 129, 136, 192, 200, 255, 256};
  constexpr size_t kDims = std::size(dims);
  size_t n = 0;
  for (DType dtype : kFloatTypes) {
    for (int64_t seqlen_q : kEdgeRows) {
      for (int64_t seqlen_k : kEdgeKeys) {
        AttentionCase c;
        c.dtype = dtype, c.batch_size = 1, c.num_heads = c.num_kv_heads = 1;
        c.is_causal = (n + n / std::size(kEdgeKeys)) % 2 == 0;
        c.seqlen_q = seqlen_q, c.seqlen_k = seqlen_k;
        c.head_dim = dims[n % kDims], c.head_dim_v = dims[(n + n / kDims) % kDims];
        ++n;
        cases.push_back(c);
      }
    }
  }
  // The tile of 48 keys: of head sizes up to 64 that are multiples of 8.
  for (DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    for (int64_t seqlen_k : {47, 48, 49, 95, 96, 97, 143, 144, 145}) {
      for (bool is_causal : {false, true}) {
        AttentionCase c;
        c.dtype = dtype, c.batch_size = 1, c.num_heads = 2, c.num_kv_heads = 1, c.is_causal = is_causal;
        c.seqlen_q = n % 2 ? 65 : 97, c.seqlen_k = seqlen_k;
        c.head_dim = n % 3 ? 64 : 40, c.head_dim_v = n % 5 ? 64 : 48;
        ++n;
        cases.push_back(c);
      }
    }
  }
  return cases;
}

// Lengths around 16, 32, 64, 128 and 256 keys: tiles of the decode kernels, of all their warps, and the least parts.
const int64_t kEdgeLengths[] = {0, 1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 513, 700};
const int64_t kGroupQueries[] = {1, 2, 3, 5, 8, 16};

// `count` of the lengths; other ones for every n.
inline std::vector<int64_t> some_edge_lengths(size_t n, size_t count) {
  std::vector<int64_t> lengths;
  for (size_t i = 0; i < count; ++i) lengths.push_back(kEdgeLengths[(7 * n + 3 * i) % std::size(kEdgeLengths)]);
  return lengths;
}

// Head sizes of the decode kernels: their own, ones that fill them in part, two that differ.
const int64_t kDecodeDims[][2] = {{64, 64}, {128, 128}, {72, 40}, {64, 128}, {256, 256}, {40, 64}, {128, 72}};

// Every group size with every number of queries: 1 to 256 rows that share the keys. Paged: grouped_paged_cases().
inline std::vector<AttentionCase> grouped_cases() {
  std::vector<AttentionCase> cases;
  size_t n = 0;
  for (int64_t group = 1; group <= 16; ++group) {
    for (int64_t seqlen_q : kGroupQueries) {
      AttentionCase c;
      c.op = AttentionOp::kDecode, c.dtype = (n + n / 6) % 2 ? DType::kFloat16 : DType::kBFloat16;
      c.batch_size = 3, c.seqlen_q = seqlen_q;
      c.num_kv_heads = n % 3 == 0 && group <= 6 ? 2 : 1, c.num_heads = group * c.num_kv_heads;
      c.head_dim = kDecodeDims[n % 7][0], c.head_dim_v = kDecodeDims[n % 7][1];
      c.lengths = true, c.len_k = some_edge_lengths(n, 3);
      c.seqlen_k = std::max<int64_t>(1, *std::max_element(c.len_k.begin(), c.len_k.end()));
      c.is_causal = n % 4 != 3;
      if (n % 5 == 2) c.window_left = 40;
      ++n;
      cases.push_back(c);
    }
  }
  return cases;
}

// The same rows over so many keys that all kernels which can split them do, also in parts that some rows do not see.
inline std::vector<AttentionCase> grouped_split_cases() {
  std::vector<AttentionCase> cases;
  const int64_t lengths[] = {1023, 2049, 1500, 3000};
  size_t n = 0;
  for (int64_t group : {1, 3, 4, 7, 16}) {
    for (int64_t seqlen_q : {1, 3, 8, 25}) {
      AttentionCase c;
      c.op = AttentionOp::kDecode, c.dtype = n % 2 ? DType::kFloat16 : DType::kBFloat16;
      c.batch_size = 1, c.seqlen_q = seqlen_q, c.seqlen_k = lengths[(n + n / 4) % 4], c.num_kv_heads = 1;
      c.num_heads = group, c.is_causal = true, c.sinks = n % 3 == 0;
      c.head_dim = kDecodeDims[n % 7][0], c.head_dim_v = kDecodeDims[n % 7][1];
      if (n % 4 == 1) c.window_left = 900;
      ++n;
      cases.push_back(c);
    }
  }
  return cases;
}

// Numbers of queries around the tiles of the tensor cores' prefill and its warps' shares of them, with several heads in
// a tile; windows whose left edge goes through tiles; head sizes in part of a tile, and two that differ; tensors with
// gaps that keep their rows aligned, and results whose rows are not.
inline std::vector<AttentionCase> grouped_prefill_cases() {
  std::vector<AttentionCase> cases;
  const int64_t queries[] = {1, 31, 32, 33, 63, 64, 65, 127, 128, 129, 197};
  const int64_t keys[] = {33, 64, 65, 128, 129, 200, 257, 300};
  const int64_t dims[] = {8, 40, 64, 72, 80, 96, 112, 128, 160, 192, 200, 256};
  const int64_t windows[][2] = {{-1, -1}, {-1, 0}, {31, 0}, {64, 0}, {65, 0}, {100, 0}, {63, 5}, {0, 128}, {129, 33}};
  const Storage storages[] = {Storage::kContiguous, Storage::kSpaced, Storage::kSwapped};
  const Storage out_storages[] = {Storage::kShifted, Storage::kContiguous, Storage::kPadded, Storage::kSpaced};
  size_t n = 0;
  for (DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    for (int64_t group = 1; group <= 5; ++group) {
      for (int64_t seqlen_q : queries) {
        AttentionCase c;
        c.op = AttentionOp::kPrefill, c.dtype = dtype, c.batch_size = 1, c.seqlen_q = seqlen_q;
        c.seqlen_k = keys[(n + n / 8) % 8], c.num_kv_heads = 1, c.num_heads = group;
        c.head_dim = dims[n % 12], c.head_dim_v = dims[(n + 5 + n / 12 % 6) % 12];
        c.is_causal = windows[n % 9][1] == 0;
        c.window_left = windows[n % 9][0], c.window_right = c.is_causal ? -1 : windows[n % 9][1];
        c.storage = storages[n % 3], c.out_storage = out_storages[n / 3 % 4];
        ++n;
        cases.push_back(c);
      }
    }
  }
  return cases;
}

// More sequences and heads than an axis of a grid may have.
inline std::vector<AttentionCase> many_items_cases() {
  std::vector<AttentionCase> cases;
  AttentionCase base;
  base.head_dim = base.head_dim_v = 8, base.seqlen_q = 1, base.seqlen_k = 1;
  base.num_heads = base.num_kv_heads = 1, base.batch_size = 1;
  std::vector<AttentionCase> some(4, base);
  some[0].batch_size = 70000;
  some[1].num_heads = some[1].num_kv_heads = 70000, some[1].seqlen_k = 3;
  some[2].num_heads = 70000, some[2].seqlen_k = 3;
  some[3].seqlen_q = 70000, some[3].seqlen_k = 5;
  for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (AttentionCase c : some) {
      c.dtype = dtype;
      cases.push_back(c);
    }
  }
  return cases;
}

}  // namespace dlattn::test
