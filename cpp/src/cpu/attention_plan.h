// How a call is cut into tasks: a pure function of sizes and lengths, never of the number of threads, so that results do not
// depend on it.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/kernels.h"

namespace dlattn::cpu {

// One sequence of the batch.
struct Sequence {
  int64_t len_q = 0;
  const void* q = nullptr;  // query 0, head 0
  void* out = nullptr;
  float* lse = nullptr;  // head 0, query 0; may be null
  KeyView keys;          // of kv head 0
  ScoreRule rule;
};

// A call, whichever its addressing.
struct Problem {
  DType dtype = DType::kFloat32;
  int64_t num_heads = 0, num_kv_heads = 0;
  int head_dim = 0, head_dim_v = 0;
  float scale = 1.0f;
  int64_t q_stride_seq = 0, q_stride_head = 0, out_stride_seq = 0, out_stride_head = 0, lse_stride_head = 0;
  int64_t k_stride_head = 0, v_stride_head = 0;
  std::vector<float> sinks;  // [num_heads]; empty: none
  std::vector<float> alibi;  // [batch or 1, num_heads]
  std::vector<Sequence> sequences;

  int64_t heads_per_kv_head() const { return num_kv_heads == 0 ? 1 : num_heads / num_kv_heads; }
};

// One task: some rows of one or more kv heads against some keys of one sequence.
struct Task {
  int64_t sequence = 0;
  int64_t kv_head_begin = 0, kv_head_end = 0;
  int64_t row_begin = 0, row_end = 0;  // of each kv head: query * heads_per_kv_head + head
  int64_t key_begin = 0, key_end = 0;
  int64_t partial = -1;  // where its results go in the partial buffer, in floats; -1: they are final
};

// Rows whose keys were split: parts of equal size follow one another in the partial buffer, in key order.
struct Merge {
  int64_t sequence = 0, kv_head = 0;
  int64_t row_begin = 0, row_end = 0;
  int64_t first = 0;  // offset of part 0 of this kv head, in floats
  int64_t step = 0;   // from one part to the next
  int64_t parts = 0;
};

struct Plan {
  bool few = false;  // which kernel
  std::vector<Task> tasks;
  std::vector<Merge> merges;
  int64_t partial_floats = 0;
  double work = 0;  // multiply-adds
};

// A partial result of one row: [padded(head_dim_v)] accumulators, row_max, row_sum.
inline int64_t partial_row_floats(const Problem& problem) { return padded(problem.head_dim_v) + 2; }

Plan make_plan(const Problem& problem);

}  // namespace dlattn::cpu
