// Dense problems whose scores are given a course along the keys, for kernels that keep no running maximum:
// attention_prefill_mma exponentiates relative to what a row saw first, moves that when a tile's sums exceed 2^8, and
// begins again if they exceed what float16 holds (2^15, about e^10) before they could be moved. attention_prefill_wgmma goes
// from the last keys to the first, begins with no reference at all, moves it up and down by powers of two, and begins again
// if an exponential is infinite (from 2^128, about e^89, on) or all of a row's are less than 2^-100 (e^-69).
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <ostream>
#include <vector>

#include "ops/attention_problem.h"

namespace dlattn::test {

enum class Course {
  kGrowth,      // `height` more from the first to the last key, evenly
  kFall,        // the other way round
  kSpike,       // `height` at one key of a late tile
  kLastKey,     // at the last one
  kSpikeOfRow,  // kSpike, for one row only
  kSteps,       // a spike every 128 keys, with tiles between them, each `height` above the one before
  kPlateau,     // `height` in all of the second half
  // The same for kernels that begin with the last keys:
  kFirstKey,       // `height` at the first key
  kFirstKeyOfRow,  // kFirstKey, for one row only
  kStepsBack,      // a spike every 128 keys, each `height` above the one behind it
  kEqual,          // `height` at all keys
};

struct ScoreCase {
  AttentionCase call;  // head_dim 64, with the default scale
  Course course = Course::kGrowth;
  double height = 0.0;
  bool late = false;  // a row of a 3D mask sees its first key late, every seventh one none; some later keys are hidden
};

inline std::ostream& operator<<(std::ostream& os, const ScoreCase& c) {
  const char* courses[] = {"growth", "fall",    "spike",     "last key",           "spike of a row",
                           "steps",  "plateau", "first key", "first key of a row", "steps back",
                           "equal"};
  return os << courses[static_cast<int>(c.course)] << " " << c.height << (c.late ? " seen late " : " ") << c.call;
}

constexpr int64_t kSpikeRow = 3;  // query

// Of key j, in natural units.
inline double course_at(const ScoreCase& c, int64_t j) {
  const int64_t n = c.call.seqlen_k;
  switch (c.course) {
    case Course::kGrowth:
      return c.height * static_cast<double>(j) / static_cast<double>(n);
    case Course::kFall:
      return -c.height * static_cast<double>(j) / static_cast<double>(n);
    case Course::kSpike:
    case Course::kSpikeOfRow:
      return j == n - 40 ? c.height : 0.0;
    case Course::kLastKey:
      return j == n - 1 ? c.height : 0.0;
    case Course::kSteps:
      return j % 128 == 70 ? c.height * static_cast<double>(j / 128 + 1) : 0.0;
    case Course::kPlateau:
      return 2 * j >= n ? c.height : 0.0;
    case Course::kFirstKey:
    case Course::kFirstKeyOfRow:
      return j == 0 ? c.height : 0.0;
    case Course::kStepsBack:
      return j % 128 == 70 ? c.height * static_cast<double>((n - 1) / 128 - j / 128 + 1) : 0.0;
    case Course::kEqual:
      return c.height;
  }
  return 0.0;
}

// Column 0 carries the course: 8 in q, the course in k, so that the scale of 1/8 (head_dim 64) leaves that to be added to
// the score. The others are random, and add less than 3 to nearly all scores.
inline DenseProblem score_problem(const ScoreCase& c) {
  DenseProblem problem(c.call);
  const AttentionCase& a = c.call;
  const bool of_row = c.course == Course::kSpikeOfRow || c.course == Course::kFirstKeyOfRow;
  for (int64_t b = 0; b < a.batch_size; ++b) {
    for (int64_t h = 0; h < a.num_heads; ++h) {
      for (int64_t i = 0; i < a.seqlen_q; ++i) {
        problem.q.set(!of_row || i == kSpikeRow ? 8.0 : 0.0, b, i, h, 0);
      }
    }
    for (int64_t h = 0; h < a.num_kv_heads; ++h) {
      for (int64_t j = 0; j < a.seqlen_k; ++j) problem.k.set(course_at(c, j), b, j, h, 0);
    }
  }
  if (!c.late) return problem;
  for (int64_t i = 0; i < a.seqlen_q; ++i) {
    for (int64_t j = 0; j < a.seqlen_k; ++j) {
      const bool keep = i % 7 != 3 && j >= i * 37 % (a.seqlen_k - 50) && (i + j) % 11 != 0;
      if (a.mask == MaskKind::kBool3D) problem.mask.set(keep ? 1.0 : 0.0, 0, i, j);
      if (a.mask == MaskKind::kHalf3D && !keep) {
        for (int64_t b = 0; b < a.batch_size; ++b) problem.mask.set(-kInfinity, b, i, j);
      }
    }
  }
  return problem;
}

// What the additive mask holds where it hides softly.
enum class Padding {
  kSomeRowsLowest,  // the lowest finite float32 on all keys of every third query: their mean, an lse of about that
  kSomeKeysLowest,  // on every other key, and on the first 70
  kLeft,            // -1e9 on the first 70 keys, and on all keys of every third query
  kMixed,           // so, but -inf on some of them
};

inline double padding_at(Padding padding, int64_t i, int64_t j) {
  constexpr double lowest = std::numeric_limits<float>::lowest();
  switch (padding) {
    case Padding::kSomeRowsLowest:
      return i % 3 == 0 ? lowest : 0.0;
    case Padding::kSomeKeysLowest:
      return j < 70 || j % 2 == 0 ? lowest : 0.0;
    case Padding::kLeft:
      return j < 70 || i % 3 == 2 ? -1e9 : 0.0;
    case Padding::kMixed:
      return j < 70 || i % 3 == 2 ? ((i + j) % 4 == 0 ? -kInfinity : -1e9) : 0.0;
  }
  return 0.0;
}

// One or more tiles of keys and of rows, of two heads that share the keys.
inline std::vector<AttentionCase> two_head_cases(const std::vector<int64_t>& seqlens_q, int64_t seqlen_k) {
  std::vector<AttentionCase> cases;
  for (DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    for (int64_t dim : {64, 128}) {
      for (int64_t seqlen_q : seqlens_q) {
        AttentionCase c;
        c.dtype = dtype, c.batch_size = 1, c.num_heads = 2, c.num_kv_heads = 1, c.head_dim = c.head_dim_v = dim;
        c.seqlen_q = seqlen_q, c.seqlen_k = seqlen_k;
        cases.push_back(c);
      }
    }
  }
  return cases;
}

// Scales every row of q or k to length 1.
inline void normalize(Tensor& t) {
  for (int64_t i = 0; i < t.size(1); ++i) {
    for (int64_t h = 0; h < t.size(2); ++h) {
      double sum = 0.0;
      for (int64_t d = 0; d < t.size(3); ++d) sum += t.at(0, i, h, d) * t.at(0, i, h, d);
      for (int64_t d = 0; d < t.size(3); ++d) t.set(t.at(0, i, h, d) / std::sqrt(sum), 0, i, h, d);
    }
  }
}

// Two rows over 66000 keys: the scores of the first are nearly equal, one key near the end stands out in the second by 7, or
// 10 as an exponent of 2.
inline DenseProblem many_equal_scores_problem() {
  AttentionCase c;
  c.dtype = DType::kFloat16, c.batch_size = 1, c.num_heads = c.num_kv_heads = 1, c.head_dim = c.head_dim_v = 64;
  c.seqlen_q = 2, c.seqlen_k = 66000;
  DenseProblem problem(c);
  problem.q.fill_random(problem.random, -0.02, 0.02);
  problem.q.set(0.0, 0, 0, 0, 0), problem.q.set(8.0, 0, 1, 0, 0);
  for (int64_t j = 0; j < c.seqlen_k; ++j) problem.k.set(j == 65900 ? 7.0 : 0.0, 0, j, 0, 0);
  problem.v.fill_random(problem.random, 0.5, 1.5);
  return problem;
}

// Axes of size 1 with a stride that no row could start at.
struct OddStridesProblem : DenseProblem {
  using DenseProblem::DenseProblem;

  AttentionParams params() {
    AttentionParams p = DenseProblem::params();
    if (p.seqlen_q == 1) p.q_stride_seq = p.out_stride_seq = 1;
    if (p.seqlen_k == 1) p.k_stride_seq = p.v_stride_seq = 1;
    return p;
  }
};

inline std::vector<ScoreCase> score_cases() {
  std::vector<ScoreCase> cases;
  for (DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    AttentionCase tall;  // two heads of a tile, more rows than one tile has: the keys stay together
    tall.dtype = dtype, tall.batch_size = 1, tall.num_heads = 2, tall.num_kv_heads = 1;
    tall.head_dim = tall.head_dim_v = 64, tall.seqlen_q = 70, tall.seqlen_k = 333;
    AttentionCase split = tall;  // parts of the keys, each with its own reference
    split.seqlen_q = 9, split.seqlen_k = 1500;
    const auto add = [&](const AttentionCase& call, Course course, double height, bool late = false) {
      cases.push_back({call, course, height, late});
    };
    for (const AttentionCase& call : {tall, split}) {
      for (double height : {20.0, 60.0, 150.0, 400.0}) add(call, Course::kGrowth, height);
      for (double height : {60.0, 400.0}) add(call, Course::kFall, height);
      // 8: larger sums, 10: those near float16's limit, 11: beyond it, 100: beyond float32's
      for (double height : {8.0, 10.0, 11.0, 30.0, 60.0, 100.0, 200.0}) add(call, Course::kSpike, height);
      for (double height : {9.0, 30.0, 200.0}) add(call, Course::kLastKey, height);
      for (double height : {9.0, 30.0, 200.0}) add(call, Course::kSpikeOfRow, height);
      for (double height : {6.0, 25.0, 80.0}) add(call, Course::kSteps, height);
      for (double height : {5.0, 7.0, 60.0}) add(call, Course::kPlateau, height);
      AttentionCase changed = call;
      changed.sinks = true;
      add(changed, Course::kSpike, 60.0);
      add(changed, Course::kFall, 60.0);
      changed.sinks = false, changed.is_causal = true, changed.window_left = 50;  // begins late for most rows
      add(changed, Course::kGrowth, 400.0);
      add(changed, Course::kSpike, 200.0);
      changed.window_left = -1;
      add(changed, Course::kSpike, 30.0);
      add(changed, Course::kLastKey, 200.0);
      changed.is_causal = false, changed.mask = MaskKind::kBool3D;
      add(changed, Course::kSpike, 30.0, true);
      add(changed, Course::kGrowth, 150.0, true);
      add(changed, Course::kFall, 150.0, true);
      changed.mask = MaskKind::kHalf3D;
      add(changed, Course::kSpike, 200.0, true);
      add(changed, Course::kSteps, 25.0, true);
    }
    AttentionCase blind = tall;  // the first 20 queries see nothing
    blind.seqlen_q = 100, blind.seqlen_k = 80, blind.is_causal = true;
    add(blind, Course::kSpike, 60.0);
    add(blind, Course::kGrowth, 400.0);
    // 6: larger sums, 30: moved, 85: about 2^128, 92: infinite
    for (double height : {6.0, 30.0, 85.0, 92.0, 200.0}) add(tall, Course::kFirstKey, height);
    for (double height : {25.0, 80.0}) add(tall, Course::kStepsBack, height);
    add(tall, Course::kFirstKeyOfRow, 200.0);
    add(tall, Course::kLastKey, 800.0);
    // 2^-29, 2^-87, and from 2^-98 on past the least sum and what float32 holds
    AttentionCase causal = tall;
    causal.is_causal = true;
    for (const AttentionCase& call : {tall, split, causal}) {
      for (double height : {-20.0, -60.0, -68.0, -70.0, -72.0, -73.0, -74.0, -75.0, -80.0, -86.0, -90.0, -400.0}) {
        add(call, Course::kEqual, height);
      }
      for (double height : {-20.0, -65.0, -71.0, -86.0, -400.0}) add(call, Course::kPlateau, height);
      for (double height : {-60.0, -90.0, -400.0}) add(call, Course::kGrowth, height);
    }
    add(split, Course::kFirstKey, 200.0);
    AttentionCase narrow = tall;  // only the first 8 queries see the spike
    narrow.is_causal = true, narrow.window_left = 270, narrow.sinks = true;
    add(narrow, Course::kFirstKey, 200.0);
  }
  return cases;
}

// More items than SMs, of which all or some are done again: several of a thread block, and its last ones.
inline std::vector<ScoreCase> many_items_score_cases() {
  std::vector<ScoreCase> cases;
  AttentionCase call;
  call.batch_size = 4, call.num_heads = 16, call.num_kv_heads = 4, call.seqlen_q = 385, call.seqlen_k = 400;
  call.head_dim = call.head_dim_v = 64;
  for (bool is_causal : {false, true}) {
    call.is_causal = is_causal, call.dtype = is_causal ? DType::kBFloat16 : DType::kFloat16;
    cases.push_back({call, Course::kFirstKey, 200.0});
    cases.push_back({call, Course::kFirstKeyOfRow, 200.0});
  }
  call.batch_size = 20;  // 5 and more of each block
  cases.push_back({call, Course::kFirstKey, 200.0});
  cases.push_back({call, Course::kFirstKeyOfRow, 200.0});
  call.batch_size = 1, call.num_heads = 32, call.seqlen_k = 2300, call.head_dim = call.head_dim_v = 128;
  cases.push_back({call, Course::kFirstKey, 200.0});
  return cases;
}

// For the sanitizers: an item of wgmma that is done again, in a part of the keys and not.
inline std::vector<ScoreCase> small_score_cases() {
  std::vector<ScoreCase> cases;
  AttentionCase call;
  call.batch_size = 1, call.num_heads = call.num_kv_heads = 1, call.seqlen_q = 65, call.head_dim = call.head_dim_v = 64;
  call.dtype = DType::kFloat16, call.seqlen_k = 1100;
  cases.push_back({call, Course::kFirstKey, 200.0});
  call.dtype = DType::kBFloat16, call.seqlen_k = 260;
  cases.push_back({call, Course::kFirstKey, 200.0});
  return cases;
}

}  // namespace dlattn::test
