#include "cpu/attention_plan.h"

#include <algorithm>

namespace dlattn::cpu {
namespace {

constexpr int64_t kBlockBytes = 200 * 1024;  // queries and accumulators of a task, beside K and V in a 512 KiB L2
constexpr int64_t kMaxTasks = 1 << 16;       // about so many, however long the keys

// Of a stride; unsigned, since the smallest one has no negative.
uint64_t magnitude(int64_t x) { return x < 0 ? 0 - static_cast<uint64_t>(x) : static_cast<uint64_t>(x); }

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct KeyRange {
  int64_t begin, end;
  int64_t size() const { return std::max<int64_t>(end - begin, 0); }
};

// The keys that some of the rows see: both bounds grow with the query.
KeyRange visible_keys(const ScoreRule& rule, int64_t first_query, int64_t last_query) {
  return {rule.key_begin(first_query), rule.key_end(last_query)};
}

// Append the tasks of these rows and heads, their keys cut into pieces of `chunk`.
void add_tasks(const Problem& problem, Task task, KeyRange keys, int64_t chunk, Plan* plan) {
  const int64_t parts = std::max<int64_t>(1, ceil_div(keys.size(), chunk));
  const int64_t rows = task.row_end - task.row_begin;
  const int64_t head_floats = rows * partial_row_floats(problem);
  const int64_t step = (task.kv_head_end - task.kv_head_begin) * head_floats;
  if (parts > 1) {
    for (int64_t head = task.kv_head_begin; head < task.kv_head_end; ++head) {
      const int64_t first = plan->partial_floats + (head - task.kv_head_begin) * head_floats;
      plan->merges.push_back({task.sequence, head, task.row_begin, task.row_end, first, step, parts});
    }
  }
  for (int64_t part = 0; part < parts; ++part) {
    task.key_begin = keys.begin + part * chunk;
    task.key_end = std::min(keys.end, task.key_begin + chunk);
    if (parts > 1) {
      task.partial = plan->partial_floats;
      plan->partial_floats += step;
    }
    plan->tasks.push_back(task);
  }
  plan->work += static_cast<double>(keys.size()) * static_cast<double>(rows * (task.kv_head_end - task.kv_head_begin)) *
                (problem.head_dim + problem.head_dim_v);
}

// Few rows per kv head: limited by reading the cache. Heads are walked together where they are neighbours in memory.
void plan_few(const Problem& problem, Plan* plan) {
  int64_t total_keys = 0;
  for (const Sequence& s : problem.sequences) total_keys += visible_keys(s.rule, 0, s.len_q - 1).size();
  const int64_t most = std::max<int64_t>(1024, ceil_div(total_keys / kMaxTasks, 64) * 64);
  const int64_t chunk = std::clamp<int64_t>(ceil_div(total_keys / 64, 64) * 64, 256, most);
  const int64_t group = problem.heads_per_kv_head();
  for (size_t b = 0; b < problem.sequences.size(); ++b) {
    const Sequence& s = problem.sequences[b];
    if (s.len_q == 0) continue;
    // The stride of an axis of size 1 means nothing.
    const bool neighbours = problem.num_kv_heads > 1 &&
                            (s.rule.len_k <= 1 || magnitude(problem.k_stride_head) <= magnitude(s.keys.k_stride_seq));
    const int64_t row_bytes = 4 * (padded(problem.head_dim) + padded(problem.head_dim_v));
    const int64_t step = neighbours ? std::max<int64_t>(1, kBlockBytes / (s.len_q * group * row_bytes)) : 1;
    for (int64_t head = 0; head < problem.num_kv_heads; head += step) {
      Task task;
      task.sequence = static_cast<int64_t>(b);
      task.kv_head_begin = head;
      task.kv_head_end = std::min(problem.num_kv_heads, head + step);
      task.row_end = s.len_q * group;
      add_tasks(problem, task, visible_keys(s.rule, 0, s.len_q - 1), chunk, plan);
    }
  }
}

// Many rows: tiles of rows, the last (with causality: the longest) first.
void plan_tiles(const Problem& problem, Plan* plan) {
  const int64_t row_bytes = 4 * (padded(problem.head_dim) + padded(problem.head_dim_v));
  const int64_t group = problem.heads_per_kv_head();
  const int64_t most = std::clamp<int64_t>(kBlockBytes / row_bytes, 48, 384) / kMaxTileRows * kMaxTileRows;
  int64_t all_rows = 0;
  for (const Sequence& s : problem.sequences) all_rows += s.len_q * group * problem.num_kv_heads;
  // at least 32 tasks if that leaves them 48 rows
  const int64_t rows = std::clamp<int64_t>(all_rows / 32 / kMaxTileRows * kMaxTileRows, 48, most);
  int64_t tiles = 0;
  for (const Sequence& s : problem.sequences) tiles += ceil_div(s.len_q * group, rows) * problem.num_kv_heads;
  for (size_t b = 0; b < problem.sequences.size(); ++b) {
    const Sequence& s = problem.sequences[b];
    const int64_t seq_rows = s.len_q * group;
    for (int64_t tile = ceil_div(seq_rows, rows) - 1; tile >= 0; --tile) {
      Task task;
      task.sequence = static_cast<int64_t>(b);
      task.row_begin = tile * rows;
      task.row_end = std::min(seq_rows, task.row_begin + rows);
      const KeyRange keys = visible_keys(s.rule, task.row_begin / group, (task.row_end - 1) / group);
      // few tiles of long sequences: split the keys as well
      const int64_t splits = std::clamp<int64_t>(std::min(ceil_div(16, tiles), keys.size() / 1024), 1, 16);
      const int64_t chunk = std::max<int64_t>(1, ceil_div(ceil_div(keys.size(), splits), kTileKeys)) * kTileKeys;
      for (int64_t head = 0; head < problem.num_kv_heads; ++head) {
        task.kv_head_begin = head;
        task.kv_head_end = head + 1;
        task.partial = -1;
        add_tasks(problem, task, keys, chunk, plan);
      }
    }
  }
}

}  // namespace

Plan make_plan(const Problem& problem) {
  Plan plan;
  if (problem.num_heads == 0 || problem.num_kv_heads == 0) return plan;
  int64_t longest = 0;
  for (const Sequence& s : problem.sequences) longest = std::max(longest, s.len_q);
  plan.few = longest * problem.heads_per_kv_head() <= kFewRows;
  if (plan.few) {
    plan_few(problem, &plan);
  } else {
    plan_tiles(problem, &plan);
  }
  return plan;
}

}  // namespace dlattn::cpu
