// The functions that exist once per instruction set, and the plain structs they work on.
//
// Attention is computed for blocks of rows. A row is one (query, query head) pair; the heads of a group that share a kv head are
// neighbours: row r of a block is query r / heads_per_kv_head, head r % heads_per_kv_head. A block walks over its keys with the
// online softmax (Milakov & Gimelshein, arXiv:1805.02867); the scale is folded into the query:
//   row_max   m, the largest score so far; -inf: none yet
//   row_sum   sum of e^(s - m)
//   acc       sum of e^(s - m) v, float32
#pragma once

#include <cstdint>

#include "dlattn/params.h"

// The files of all instruction sets include this one: a function that is not inlined would be shared by them, in the version of
// whichever the linker takes.
#define DLATTN_INLINE __attribute__((always_inline)) inline

namespace dlattn::cpu {

constexpr float kLog2E = 1.44269504088896341f;
constexpr int64_t kUnlimited = INT64_C(1) << 62;

constexpr int kPanel = 32;  // rows of float32 scratch are padded to a multiple of this
constexpr int kTileKeys =
    128;                      // keys that the tile kernel packs at a time; 64..512 differ by 5 % (docs/kernels/cpu.md)
constexpr int kFewKeys = 32;  // keys that the few-rows kernel takes at a time
constexpr int kFewRows = 8;   // up to so many rows per kv head the few-rows kernel is faster

static constexpr int padded(int n) { return (n + kPanel - 1) / kPanel * kPanel; }

// Where key j of one (sequence, kv head) lies.
struct KeyView {
  const void* k = nullptr;
  const void* v = nullptr;
  int64_t k_stride_seq = 0, v_stride_seq = 0;  // elements
  const void* pages = nullptr;                 // the sequence's row of the page table; null: contiguous
  bool pages_int64 = false;
  int64_t page_size = 1;
  int64_t k_stride_page = 0, v_stride_page = 0;
};

// Which keys a query of one sequence sees, and what is added to the scores.
struct ScoreRule {
  int64_t offset = 0;                             // len_k - len_q: query i stands at key i + offset
  int64_t left = kUnlimited, right = kUnlimited;  // key j is visible iff -left <= j - (i + offset) <= right
  int64_t len_k = 0;
  float softcap = 0.0f;        // 0: off
  const void* mask = nullptr;  // of this sequence
  DType mask_dtype = DType::kBool;
  int64_t mask_stride_head = 0, mask_stride_q = 0, mask_stride_k = 0;
  const float* alibi = nullptr;  // [num_heads]

  DLATTN_INLINE int64_t key_begin(int64_t query) const {
    const int64_t first = left == kUnlimited ? 0 : query + offset - left;
    return first < 0 ? 0 : first;
  }
  DLATTN_INLINE int64_t key_end(int64_t query) const {
    if (right == kUnlimited) return len_k;
    const int64_t last = query + offset + right + 1;
    return last < 0 ? 0 : last < len_k ? last : len_k;
  }
  DLATTN_INLINE bool positional_only() const { return softcap == 0.0f && mask == nullptr && alibi == nullptr; }
};

struct RowBlock {
  int64_t first_row = 0;  // of the (sequence, kv head)
  int num_rows = 0;
  int padded_rows = 0;  // rows that query and acc have room for: see attend_tile, attend_few
  int heads_per_kv_head = 1;
  int64_t first_head = 0;  // query head of row 0 of the (sequence, kv head)
  int head_dim = 0, head_dim_v = 0;
  float scale = 1.0f;
  const void* q = nullptr;  // query 0, head first_head
  int64_t q_stride_seq = 0, q_stride_head = 0;
  KeyView keys;
  ScoreRule rule;

  KeyView next;                          // attend_few: what it will be given next, to prefetch
  int64_t next_begin = 0, next_end = 0;  // empty: nothing

  float* query = nullptr;    // [padded_rows, padded(head_dim)], scaled
  float* acc = nullptr;      // [padded_rows, padded(head_dim_v)]
  float* row_max = nullptr;  // [num_rows]
  float* row_sum = nullptr;
  float* scratch = nullptr;  // scratch_floats(head_dim, head_dim_v), not kept between calls

  DLATTN_INLINE int64_t query_of(int row) const { return (first_row + row) / heads_per_kv_head; }
  DLATTN_INLINE int64_t head_of(int row) const { return first_head + (first_row + row) % heads_per_kv_head; }
};

constexpr int kMaxTileRows = 12;  // the largest register tile of any instruction set
constexpr int kScoreStride = kTileKeys;

static constexpr int64_t scratch_floats(int head_dim, int head_dim_v) {
  return static_cast<int64_t>(kTileKeys) * (padded(head_dim) + padded(head_dim_v)) + 2 * kMaxTileRows * kScoreStride;
}

struct AttentionKernels {
  // Convert the queries and reset row_max, row_sum and acc.
  void (*start)(const RowBlock& block);
  // Let all rows see the keys [begin, end); what a row may not see is skipped. `tile`: packed matrix products, any number of
  // rows, padded_rows a multiple of kMaxTileRows. `few`: nothing packed, padded_rows >= num_rows, end - begin <= kFewKeys.
  void (*attend_tile)(const RowBlock& block, int64_t begin, int64_t end);
  void (*attend_few)(const RowBlock& block, int64_t begin, int64_t end);
};

// One token's rotation: `num_heads` rows of head_dim elements, rotary_dim of them rotated.
struct RotaryRows {
  const void* src = nullptr;
  void* dst = nullptr;  // may be src
  int64_t src_stride_head = 0, dst_stride_head = 0;
  int64_t num_heads = 0;
  int head_dim = 0, rotary_dim = 0;
  bool interleaved = false;
  const float* cos = nullptr;  // [rotary_dim / 2]
  const float* sin = nullptr;
};

struct DTypeKernels {  // for float32, float16, bfloat16
  AttentionKernels attention;
  void (*rotate)(const RotaryRows& rows);
  void (*load)(const void* src, float* dst, int64_t n);
  void (*store)(const float* src, void* dst, int64_t n);
};

struct Kernels {
  const char* isa;
  DTypeKernels by_dtype[3];  // indexed by DType
};

extern const Kernels kKernelsBaseline;
extern const Kernels kKernelsAvx2;
extern const Kernels kKernelsAvx512;

}  // namespace dlattn::cpu
