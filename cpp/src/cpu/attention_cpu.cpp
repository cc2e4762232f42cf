// Attention on the CPU: one problem form for dense, ragged and paged calls, cut into tasks, run on the pool, merged in key order.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>

#include "backend.h"
#include "cpu/attention_plan.h"
#include "cpu/isa.h"
#include "cpu/read.h"
#include "cpu/scratch.h"
#include "cpu/thread_pool.h"
#include "element.h"

namespace dlattn::cpu {
namespace {

constexpr double kWorthThreads = 200e3;  // multiply-adds: about 10 us of one core, and waking a thread costs 24-41 us

// What all three forms of parameters share.
template <class Params>
Problem start_problem(const Params& params) {
  Problem problem;
  problem.dtype = params.dtype;
  problem.num_heads = params.num_heads;
  problem.num_kv_heads = params.num_kv_heads;
  problem.head_dim = static_cast<int>(params.head_dim);
  problem.head_dim_v = static_cast<int>(params.head_dim_v);
  const AttentionOptions& options = params.options;
  const double scale = options.scale ? *options.scale : 1.0 / std::sqrt(static_cast<double>(params.head_dim));
  problem.scale = static_cast<float>(scale);
  problem.q_stride_head = params.q_stride_head;
  problem.out_stride_head = params.out_stride_head;
  problem.lse_stride_head = params.lse_stride_head;
  problem.k_stride_head = params.k_stride_head;
  problem.v_stride_head = params.v_stride_head;
  if (options.sinks.data != nullptr) {
    for (int64_t h = 0; h < params.num_heads; ++h) problem.sinks.push_back(read_float(options.sinks, h));
  }
  if (options.alibi_slopes.data != nullptr) {
    const int64_t copies = options.alibi_stride_batch == 0 ? 1 : params.batch_size;
    for (int64_t b = 0; b < copies; ++b) {
      for (int64_t h = 0; h < params.num_heads; ++h) {
        problem.alibi.push_back(read_float(options.alibi_slopes, b * options.alibi_stride_batch + h));
      }
    }
  }
  problem.sequences.resize(static_cast<size_t>(params.batch_size));
  return problem;
}

void set_rule(const AttentionOptions& options, int64_t batch, int64_t len_q, int64_t len_k, Problem* problem) {
  Sequence& s = problem->sequences[static_cast<size_t>(batch)];
  s.len_q = len_q;
  ScoreRule& rule = s.rule;
  rule.len_k = len_k;
  rule.offset = len_k - len_q;
  if (options.window_left >= 0 && options.window_left < kUnlimited) rule.left = options.window_left;
  if (options.window_right >= 0 && options.window_right < kUnlimited) rule.right = options.window_right;
  if (options.is_causal) rule.right = 0;
  rule.softcap = options.softcap;
  if (!problem->alibi.empty()) {
    const int64_t row = static_cast<int64_t>(problem->alibi.size()) == problem->num_heads ? 0 : batch;
    rule.alibi = problem->alibi.data() + row * problem->num_heads;
  }
  const AttentionMask& mask = options.mask;
  if (mask.data != nullptr) {
    const int64_t start = mask.batch_size == 1 ? 0 : batch * mask.stride_batch;
    rule.mask = offset(mask.data, start, mask.dtype);
    rule.mask_dtype = mask.dtype;
    rule.mask_stride_head = mask.num_heads == 1 ? 0 : mask.stride_head;
    rule.mask_stride_q = mask.stride_seq_q;
    rule.mask_stride_k = mask.stride_seq_k;
  }
}

Problem make_problem(const AttentionParams& params) {
  Problem problem = start_problem(params);
  problem.q_stride_seq = params.q_stride_seq;
  problem.out_stride_seq = params.out_stride_seq;
  for (int64_t b = 0; b < params.batch_size; ++b) {
    Sequence& s = problem.sequences[static_cast<size_t>(b)];
    s.q = offset(params.q, b * params.q_stride_batch, params.dtype);
    s.out = offset(params.out, b * params.out_stride_batch, params.dtype);
    s.lse = params.lse == nullptr ? nullptr : params.lse + b * params.lse_stride_batch;
    s.keys.k = offset(params.k, b * params.k_stride_batch, params.dtype);
    s.keys.v = offset(params.v, b * params.v_stride_batch, params.dtype);
    s.keys.k_stride_seq = params.k_stride_seq;
    s.keys.v_stride_seq = params.v_stride_seq;
    const int64_t len_k = params.seqlens_k.data == nullptr ? params.seqlen_k : index_at(params.seqlens_k, b);
    set_rule(params.options, b, params.seqlen_q, len_k, &problem);
  }
  return problem;
}

Problem make_problem(const VarlenAttentionParams& params) {
  Problem problem = start_problem(params);
  problem.q_stride_seq = params.q_stride_token;
  problem.out_stride_seq = params.out_stride_token;
  for (int64_t b = 0; b < params.batch_size; ++b) {
    Sequence& s = problem.sequences[static_cast<size_t>(b)];
    const int64_t first_q = index_at(params.cu_seqlens_q, b), first_k = index_at(params.cu_seqlens_k, b);
    s.q = offset(params.q, first_q * params.q_stride_token, params.dtype);
    s.out = offset(params.out, first_q * params.out_stride_token, params.dtype);
    s.lse = params.lse == nullptr ? nullptr : params.lse + first_q;
    s.keys.k = offset(params.k, first_k * params.k_stride_token, params.dtype);
    s.keys.v = offset(params.v, first_k * params.v_stride_token, params.dtype);
    s.keys.k_stride_seq = params.k_stride_token;
    s.keys.v_stride_seq = params.v_stride_token;
    set_rule(params.options, b, index_at(params.cu_seqlens_q, b + 1) - first_q,
             index_at(params.cu_seqlens_k, b + 1) - first_k, &problem);
  }
  return problem;
}

Problem make_problem(const PagedAttentionParams& params) {
  Problem problem = start_problem(params);
  problem.q_stride_seq = params.q_stride_seq;
  problem.out_stride_seq = params.out_stride_seq;
  const bool ragged = params.cu_seqlens_q.data != nullptr;
  for (int64_t b = 0; b < params.batch_size; ++b) {
    Sequence& s = problem.sequences[static_cast<size_t>(b)];
    const int64_t first_q = ragged ? index_at(params.cu_seqlens_q, b) : 0;
    const int64_t len_q = ragged ? index_at(params.cu_seqlens_q, b + 1) - first_q : params.seqlen_q;
    const int64_t q_start = ragged ? first_q * params.q_stride_seq : b * params.q_stride_batch;
    const int64_t out_start = ragged ? first_q * params.out_stride_seq : b * params.out_stride_batch;
    s.q = offset(params.q, q_start, params.dtype);
    s.out = offset(params.out, out_start, params.dtype);
    s.lse = params.lse == nullptr ? nullptr : params.lse + (ragged ? first_q : b * params.lse_stride_batch);
    s.keys.k = params.k_cache;
    s.keys.v = params.v_cache;
    s.keys.k_stride_seq = params.k_stride_seq;
    s.keys.v_stride_seq = params.v_stride_seq;
    s.keys.pages = offset(params.page_table.data, b * params.page_table_stride_batch, params.page_table.dtype);
    s.keys.pages_int64 = params.page_table.dtype == DType::kInt64;
    s.keys.page_size = params.page_size;
    s.keys.k_stride_page = params.k_stride_page;
    s.keys.v_stride_page = params.v_stride_page;
    set_rule(params.options, b, len_q, index_at(params.seqlens_k, b), &problem);
  }
  return problem;
}

// The last step of one row: divide, add the sink, convert, write.
void write_row(const Problem& problem, const Sequence& s, int64_t head, int64_t query, float* acc, float row_max,
               float row_sum) {
  float largest = row_max, factor = 1.0f, sum = row_sum;
  if (!problem.sinks.empty()) {
    const float sink = problem.sinks[static_cast<size_t>(head)];
    if (std::isnan(sink)) sum = sink;
    if (sink > largest) largest = sink;
    if (largest != -std::numeric_limits<float>::infinity()) {
      factor = std::exp(row_max - largest);
      sum = sum * factor + std::exp(sink - largest);
    }
  }
  const float weight = sum == 0.0f ? 0.0f : factor / sum;  // no visible key: acc is 0
  for (int d = 0; d < problem.head_dim_v; ++d) acc[d] *= weight;
  void* out = offset(s.out, query * problem.out_stride_seq + head * problem.out_stride_head, problem.dtype);
  kernels_for(problem.dtype).store(acc, out, problem.head_dim_v);
  if (s.lse != nullptr) {
    s.lse[head * problem.lse_stride_head + query] = static_cast<float>(largest + std::log(static_cast<double>(sum)));
  }
}

// A worker's memory for one kv head of a task.
RowBlock make_block(const Problem& problem, const Task& task, bool few) {
  const Sequence& s = problem.sequences[static_cast<size_t>(task.sequence)];
  RowBlock block;
  block.first_row = task.row_begin;
  block.num_rows = static_cast<int>(task.row_end - task.row_begin);
  block.padded_rows = few ? block.num_rows : (block.num_rows + kMaxTileRows - 1) / kMaxTileRows * kMaxTileRows;
  block.heads_per_kv_head = static_cast<int>(problem.heads_per_kv_head());
  block.head_dim = problem.head_dim;
  block.head_dim_v = problem.head_dim_v;
  block.scale = problem.scale;
  block.q_stride_seq = problem.q_stride_seq;
  block.q_stride_head = problem.q_stride_head;
  block.keys = s.keys;
  block.next = s.keys;
  block.rule = s.rule;
  return block;
}

void set_head(const Problem& problem, const Sequence& s, int64_t kv_head, KeyView* keys) {
  keys->k = offset(s.keys.k, kv_head * problem.k_stride_head, problem.dtype);
  keys->v = offset(s.keys.v, kv_head * problem.v_stride_head, problem.dtype);
}

void finish_head(const Problem& problem, const Task& task, const RowBlock& block, int64_t kv_head, float* partials) {
  const Sequence& s = problem.sequences[static_cast<size_t>(task.sequence)];
  const int64_t stride = padded(problem.head_dim_v);
  for (int row = 0; row < block.num_rows; ++row) {
    float* acc = block.acc + row * stride;
    if (task.partial < 0) {
      write_row(problem, s, block.head_of(row), block.query_of(row), acc, block.row_max[row], block.row_sum[row]);
      continue;
    }
    const int64_t index = (kv_head - task.kv_head_begin) * block.num_rows + row;
    float* part = partials + task.partial + index * partial_row_floats(problem);
    std::memcpy(part, acc, static_cast<size_t>(stride) * sizeof(float));
    part[stride] = block.row_max[row];
    part[stride + 1] = block.row_sum[row];
  }
}

void run_task(const Problem& problem, const Task& task, bool few, float* partials) {
  const AttentionKernels& kernel = kernels_for(problem.dtype).attention;
  const Sequence& s = problem.sequences[static_cast<size_t>(task.sequence)];
  RowBlock block = make_block(problem, task, few);
  const int64_t heads = task.kv_head_end - task.kv_head_begin;
  const int64_t query_floats = static_cast<int64_t>(block.padded_rows) * padded(problem.head_dim);
  const int64_t acc_floats = static_cast<int64_t>(block.padded_rows) * padded(problem.head_dim_v);
  const int64_t row_floats = padded(block.num_rows);
  const int64_t head_floats = query_floats + acc_floats + 2 * row_floats;
  float* memory =
      thread_scratch(heads * head_floats + (few ? 0 : scratch_floats(problem.head_dim, problem.head_dim_v)));
  const auto place = [&](int64_t kv_head) {
    float* p = memory + (kv_head - task.kv_head_begin) * head_floats;
    block.query = p;
    block.acc = p + query_floats;
    block.row_max = p + query_floats + acc_floats;
    block.row_sum = block.row_max + row_floats;
    block.scratch = memory + heads * head_floats;
    block.first_head = kv_head * problem.heads_per_kv_head();
    block.q = offset(s.q, block.first_head * problem.q_stride_head, problem.dtype);
    set_head(problem, s, kv_head, &block.keys);
  };
  for (int64_t head = task.kv_head_begin; head < task.kv_head_end; ++head) {
    place(head);
    kernel.start(block);
  }
  if (few) {
    for (int64_t key = task.key_begin; key < task.key_end; key += kFewKeys) {
      const int64_t end = key + kFewKeys < task.key_end ? key + kFewKeys : task.key_end;
      for (int64_t head = task.kv_head_begin; head < task.kv_head_end; ++head) {
        place(head);
        const bool last_head = head + 1 == task.kv_head_end;
        set_head(problem, s, last_head ? task.kv_head_begin : head + 1, &block.next);
        block.next_begin = last_head ? end : key;
        block.next_end = last_head ? std::min(end + kFewKeys, task.key_end) : end;
        kernel.attend_few(block, key, end);
      }
    }
  } else {
    kernel.attend_tile(block, task.key_begin, task.key_end);
  }
  for (int64_t head = task.kv_head_begin; head < task.kv_head_end; ++head) {
    place(head);
    finish_head(problem, task, block, head, partials);
  }
}

// Combine the parts of split rows, in key order.
void run_merge(const Problem& problem, const Merge& merge, float* partials) {
  const Sequence& s = problem.sequences[static_cast<size_t>(merge.sequence)];
  const int64_t stride = padded(problem.head_dim_v), group = problem.heads_per_kv_head();
  float acc[padded(256)];
  for (int64_t row = merge.row_begin; row < merge.row_end; ++row) {
    const float* first = partials + merge.first + (row - merge.row_begin) * partial_row_floats(problem);
    float largest = -std::numeric_limits<float>::infinity();
    for (int64_t part = 0; part < merge.parts; ++part) largest = std::fmax(largest, first[part * merge.step + stride]);
    float sum = 0.0f;
    std::memset(acc, 0, sizeof(acc));
    for (int64_t part = 0; part < merge.parts; ++part) {
      const float* p = first + part * merge.step;
      const float part_max = p[stride], part_sum = p[stride + 1];
      if (part_sum == 0.0f) continue;  // saw nothing
      const float factor = part_max == largest ? 1.0f : std::exp(part_max - largest);
      sum += part_sum * factor;
      for (int d = 0; d < problem.head_dim_v; ++d) acc[d] += p[d] * factor;
    }
    write_row(problem, s, merge.kv_head * group + row % group, row / group, acc, largest, sum);
  }
}

void run(const Problem& problem) {
  kernels();  // a wrong DLATTN_CPU_ISA shows before anything is done
  const Plan plan = make_plan(problem);
  std::unique_ptr<float[]> partials(plan.partial_floats == 0 ? nullptr
                                                             : new float[static_cast<size_t>(plan.partial_floats)]);
  const bool worth = plan.work > kWorthThreads;
  parallel_for(static_cast<int64_t>(plan.tasks.size()), worth,
               [&](int64_t i) { run_task(problem, plan.tasks[static_cast<size_t>(i)], plan.few, partials.get()); });
  parallel_for(static_cast<int64_t>(plan.merges.size()), worth,
               [&](int64_t i) { run_merge(problem, plan.merges[static_cast<size_t>(i)], partials.get()); });
}

}  // namespace

void attention(const AttentionParams& params, AttentionOp) { run(make_problem(params)); }
void attention(const VarlenAttentionParams& params) { run(make_problem(params)); }
void attention(const PagedAttentionParams& params) { run(make_problem(params)); }

}  // namespace dlattn::cpu
