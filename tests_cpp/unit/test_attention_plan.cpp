// The plan of a call: every visible (row, key) pair belongs to exactly one task, split rows have their merge, parts do not overlap.
#include <gtest/gtest.h>

#include <set>
#include <tuple>

#include "cpu/attention_plan.h"

namespace {

using namespace dlattn::cpu;

Problem make(int64_t heads, int64_t kv_heads, int head_dim, const std::vector<std::pair<int64_t, int64_t>>& lengths,
             bool causal, int64_t left, bool heads_together) {
  Problem problem;
  problem.num_heads = heads;
  problem.num_kv_heads = kv_heads;
  problem.head_dim = problem.head_dim_v = head_dim;
  problem.k_stride_head = heads_together ? head_dim : int64_t{1} << 20;
  for (const auto& [len_q, len_k] : lengths) {
    Sequence s;
    s.len_q = len_q;
    s.rule.len_k = len_k;
    s.rule.offset = len_k - len_q;
    if (causal) s.rule.right = 0;
    if (left >= 0) s.rule.left = left;
    s.keys.k_stride_seq = kv_heads * head_dim;
    problem.sequences.push_back(s);
  }
  return problem;
}

void check(const Problem& problem) {
  const Plan plan = make_plan(problem);
  const int64_t group = problem.heads_per_kv_head();
  for (size_t b = 0; b < problem.sequences.size(); ++b) {
    const Sequence& s = problem.sequences[b];
    for (int64_t head = 0; head < problem.num_kv_heads; ++head) {
      for (int64_t row = 0; row < s.len_q * group; ++row) {
        int64_t seen = 0, at = s.rule.key_begin(row / group), direct = 0, parts = 0;
        for (const Task& t : plan.tasks) {
          if (t.sequence != static_cast<int64_t>(b) || head < t.kv_head_begin || head >= t.kv_head_end) continue;
          if (row < t.row_begin || row >= t.row_end) continue;
          const int64_t begin = std::max(t.key_begin, s.rule.key_begin(row / group));
          const int64_t end = std::min(t.key_end, s.rule.key_end(row / group));
          if (end > begin) {
            ASSERT_EQ(begin, at) << "keys out of order or twice";
            at = end;
            seen += end - begin;
          }
          (t.partial < 0 ? direct : parts) += 1;
        }
        ASSERT_EQ(seen, std::max<int64_t>(0, s.rule.key_end(row / group) - s.rule.key_begin(row / group)));
        ASSERT_TRUE((direct == 1 && parts == 0) || (direct == 0 && parts > 1)) << direct << " " << parts;
        int64_t merges = 0;
        for (const Merge& m : plan.merges) {
          if (m.sequence == static_cast<int64_t>(b) && m.kv_head == head && row >= m.row_begin && row < m.row_end) {
            ++merges;
            ASSERT_EQ(m.parts, parts);
          }
        }
        ASSERT_EQ(merges, parts > 0 ? 1 : 0);
      }
    }
  }
  std::set<int64_t> starts;
  for (const Task& t : plan.tasks) {
    if (t.partial < 0) continue;
    EXPECT_TRUE(starts.insert(t.partial).second);
    EXPECT_LE(t.partial + (t.kv_head_end - t.kv_head_begin) * (t.row_end - t.row_begin) * partial_row_floats(problem),
              plan.partial_floats);
  }
}

TEST(AttentionPlan, CoversEveryVisiblePairOnce) {
  using Lengths = std::vector<std::pair<int64_t, int64_t>>;
  for (bool together : {false, true}) {
    for (bool causal : {false, true}) {
      for (int64_t left : {-1, 0, 300}) {
        for (const Lengths& lengths :
             {Lengths{{1, 5000}}, Lengths{{1, 0}, {1, 9000}, {1, 17}}, Lengths{{3, 2000}, {0, 7}, {2, 1}},
              Lengths{{40, 3000}}, Lengths{{400, 400}, {1, 1}, {9, 0}}, Lengths{{64, 20000}}, Lengths{}}) {
          check(make(4, 2, 64, lengths, causal, left, together));
          check(make(6, 1, 256, lengths, causal, left, together));
        }
      }
    }
  }
}

TEST(AttentionPlan, SplitsALongCacheOfFewHeads) {
  const Plan decode = make_plan(make(8, 1, 128, {{1, 65536}}, true, -1, true));
  EXPECT_TRUE(decode.few);
  EXPECT_GE(decode.tasks.size(), 32u);
  const Plan tiles = make_plan(make(1, 1, 128, {{64, 65536}}, true, -1, true));
  EXPECT_FALSE(tiles.few);
  EXPECT_GE(tiles.tasks.size(), 16u);
}

TEST(AttentionPlan, WindowLeavesHiddenKeysOut) {
  const Plan plan = make_plan(make(4, 4, 64, {{1, 100000}}, true, 255, true));
  for (const Task& t : plan.tasks) {
    EXPECT_GE(t.key_begin, 100000 - 256);
    EXPECT_LE(t.key_end, 100000);
  }
}

}  // namespace
