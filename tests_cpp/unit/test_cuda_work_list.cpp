// How attention_prefill_wgmma cuts its work up and in which order it is taken. Pure functions of the host and the device.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "cuda/wgmma/plan_wgmma.h"
#include "cuda/wgmma/work_list.h"

namespace dlattn::cuda {
namespace prefill_wgmma {
namespace {

constexpr int kRows = 128;
constexpr int kTileRows[] = {64, 128, 192};
constexpr int kKeyTiles[] = {64, 80, 96, 128};

AttentionProblem problem_of(int64_t batch, int64_t num_heads, int64_t heads_per_kv_head, int64_t len_q,
                            int64_t len_k = 1000, bool ragged = false) {
  AttentionProblem p;
  p.dtype = DType::kBFloat16;
  p.head_dim = p.head_dim_v = 64;
  p.batch_size = batch, p.num_heads = num_heads;
  p.heads_per_kv_head = heads_per_kv_head, p.num_kv_heads = num_heads / heads_per_kv_head;
  p.ragged_q = ragged;
  p.total_q = batch * len_q, p.max_len_q = ragged ? p.total_q : len_q, p.max_len_k = len_k;
  return p;
}

RowTiles tiles_of(const AttentionProblem& p, int rows = kRows) {  // of query heads
  return RowTiles(p.batch_size, 1, p.max_len_q, p.total_q, IndexArray(), rows, p.ragged_q);
}

SplitPlan plan_of_parts(int64_t parts) {
  SplitPlan plan;
  plan.choices[0].min_keys = 0;
  if (parts == 1) return plan;
  plan.choices[1].min_keys = 1024, plan.choices[1].splits = FastDiv(parts);
  plan.min_chunk = 512, plan.max_splits = plan.workspace_splits = parts;
  return plan;
}

// Every (part, pair, rank) is one item. Parts and groups come one after the other; in a group the ranks never fall.
void expect_items(const AttentionProblem& p, int rows, int64_t parts, int64_t group) {
  const RowTiles tiles = tiles_of(p, rows);
  const WorkList list(p, tiles, plan_of_parts(parts), group, nullptr);
  const int64_t pairs = p.num_heads * (p.ragged_q ? 1 : p.batch_size);
  ASSERT_EQ(list.num_items, tiles.num_slots * p.num_heads * parts);
  ASSERT_EQ(list.num_items, pairs * list.tiles * parts);
  const int64_t in_group = std::clamp<int64_t>(group, 1, pairs);
  std::vector<int> seen(static_cast<size_t>(list.num_items), 0);
  WorkList::Place before = {0, 0, 0};
  for (int index = 0; index < list.num_items; ++index) {
    const WorkList::Place place = list.find(index);
    ASSERT_TRUE(place.part >= 0 && place.part < parts) << "item " << index << ": part " << place.part;
    ASSERT_TRUE(place.pair >= 0 && place.pair < pairs) << "item " << index << ": pair " << place.pair;
    ASSERT_TRUE(place.rank >= 0 && place.rank < list.tiles) << "item " << index << ": rank " << place.rank;
    ++seen[static_cast<size_t>((place.part * pairs + place.pair) * list.tiles + place.rank)];
    const int64_t of = place.pair / in_group, of_before = before.pair / in_group;
    ASSERT_GE(place.part, before.part) << "item " << index;
    if (place.part == before.part) {
      ASSERT_GE(of, of_before) << "item " << index << " is of an earlier group";
      if (of == of_before) {
        ASSERT_GE(place.rank, before.rank) << "item " << index << " is longer than the one before";
      }
    }
    before = place;
  }
  ASSERT_TRUE(std::all_of(seen.begin(), seen.end(), [](int count) { return count == 1; }));
}

TEST(WorkListTest, EveryItemOnce) {
  for (int64_t batch : {1, 2, 3, 7}) {
    for (int64_t num_heads : {1, 2, 6, 16}) {
      for (int64_t len_q : {1, 64, 65, 128, 129, 192, 193, 700}) {
        for (int64_t group : {0, 1, 2, 3, 5, 8, 16, 31, 1000}) {
          for (int64_t parts : {1, 2, 7}) {
            SCOPED_TRACE(testing::Message() << "batch " << batch << ", " << num_heads << " heads, " << len_q
                                            << " queries, groups of " << group << ", " << parts << " parts");
            for (bool ragged : {false, true}) {
              const AttentionProblem p = problem_of(batch, num_heads, 1, len_q, 1000, ragged);
              for (int rows : kTileRows) ASSERT_NO_FATAL_FAILURE(expect_items(p, rows, parts, group)) << rows;
            }
          }
        }
      }
    }
  }
}

// Calls that are cut, and neighbours that are not.
std::vector<AttentionProblem> split_problems() {
  std::vector<AttentionProblem> problems;
  for (int64_t batch : {1, 2, 5}) {
    for (int64_t num_heads : {1, 2, 8, 13, 33}) {
      for (int64_t len_q : {1, 64, 300}) {
        for (int64_t len_k : {1, 512, 895, 896, 1023, 1024, 5000, 20000, 1000000}) {
          for (int64_t window : {-1, 0, 255, 3000}) {
            for (bool ragged : {false, true}) {
              AttentionProblem p = problem_of(batch, num_heads, 1, len_q, len_k, ragged);
              if (window >= 0) p.window_left = window, p.window_right = window / 2;
              problems.push_back(p);
            }
          }
        }
      }
    }
  }
  return problems;
}

testing::Message text_of(const AttentionProblem& p, int key_tile, int num_sms) {
  return testing::Message() << p.batch_size << " x " << p.num_heads << " heads, " << p.max_len_q << " queries, "
                            << p.max_len_k << " keys, window " << p.window_left << (p.ragged_q ? ", ragged" : "")
                            << ", tiles of " << key_tile << " keys, " << num_sms << " SMs";
}

template <typename Check>
void on_every_plan(Check&& check) {
  for (const AttentionProblem& p : split_problems()) {
    for (int key_tile : kKeyTiles) {
      for (int num_sms : {1, 78, 132}) {
        for (int rows : kTileRows) {
          const RowTiles tiles = tiles_of(p, rows);
          const SplitPlan plan = split_plan_wgmma(p, tiles, key_tile, num_sms);
          SCOPED_TRACE(text_of(p, key_tile, num_sms) << ", " << rows << " rows");
          check(p, tiles, plan, key_tile, num_sms);
          if (::testing::Test::HasFailure()) return;
        }
      }
    }
  }
}

// The keys that the kernel gives to each part (work_item.cuh) are all of them, once, and those that the merge expects.
void expect_parts(const WorkList& list, const SplitPlan& plan, int keys) {
  const int64_t splits = plan.num_splits(keys);
  ASSERT_EQ(list.is_split(keys), splits > 1) << keys << " keys";
  ASSERT_LE(splits, plan.max_splits) << keys << " keys";
  if (splits == 1) return;
  const int chunk = list.chunk(keys);
  ASSERT_EQ(chunk, plan.chunk(keys)) << keys << " keys";
  ASSERT_EQ((keys + chunk - 1) / chunk, splits) << keys << " keys";
  int64_t next = 0;
  for (int part = 0; part < list.parts; ++part) {
    const int64_t begin = static_cast<int64_t>(part) * chunk;
    if (begin >= keys) continue;
    const KeyRange range = plan.part({0, keys}, part);
    ASSERT_TRUE(range.begin == begin && range.end == std::min<int64_t>(begin + chunk, keys)) << keys << " keys";
    ASSERT_EQ(begin, next);
    next = range.end;
  }
  ASSERT_EQ(next, keys) << "the last keys are in no part";
}

TEST(WorkListTest, PartsAreThoseOfThePlan) {
  std::vector<int64_t> done;  // parts and least keys of a part: what a plan consists of
  on_every_plan([&](const AttentionProblem& p, const RowTiles& tiles, const SplitPlan& plan, int, int) {
    const int64_t kind = plan.max_splits * 10000 + plan.min_chunk;
    if (std::count(done.begin(), done.end(), kind) > 0) return;
    done.push_back(kind);
    const WorkList list(p, tiles, plan, 1, nullptr);
    for (int keys = 0; keys <= 20000; ++keys) ASSERT_NO_FATAL_FAILURE(expect_parts(list, plan, keys));
    for (int keys : {1 << 20, (1 << 30) - 1, 1 << 30}) ASSERT_NO_FATAL_FAILURE(expect_parts(list, plan, keys));
  });
  EXPECT_GT(done.size(), 50u);
}

TEST(SplitPlanWgmmaTest, WhereBlocksWouldBeFewerThanHalfOfTheSms) {
  int cut = 0;
  on_every_plan([&](const AttentionProblem& p, const RowTiles& tiles, const SplitPlan& plan, int key_tile, int sms) {
    const int64_t items = tiles.num_slots * p.num_heads;
    EXPECT_EQ(plan.max_splits, plan.workspace_splits);
    EXPECT_GE(plan.max_splits, 1);
    EXPECT_LE(items * plan.max_splits, std::max<int64_t>(items, sms)) << "one wave";
    int64_t keys = p.max_len_k;
    if (p.window_left != kUnlimited) keys = std::min(keys, p.window_left + p.window_right + tiles.tile_rows);
    if (plan.max_splits == 1) {
      EXPECT_TRUE(2 * items > sms || keys < 8 * key_tile) << items << " items";
      return;
    }
    ++cut;
    EXPECT_LE(2 * items, sms);
    EXPECT_GE(plan.chunk(keys), 4 * key_tile) << "less is not worth the merge";
    EXPECT_EQ(plan.num_splits(8 * key_tile - 1), 1);
  });
  EXPECT_GT(cut, 100);
}

TEST(SplitPlanWgmmaTest, OnAnH200) {
  const auto parts = [](int64_t num_heads, int64_t len_q, int64_t len_k, int rows = 128, int key_tile = 128) {
    const AttentionProblem p = problem_of(1, num_heads, 1, len_q, len_k);
    return split_plan_wgmma(p, tiles_of(p, rows), key_tile, 132).max_splits;
  };
  EXPECT_EQ(parts(1, 64, 5000), 9);
  EXPECT_EQ(parts(2, 64, 5000), 9);
  EXPECT_EQ(parts(1, 64, 1000000), 132);
  EXPECT_EQ(parts(66, 64, 5000), 2);
  EXPECT_EQ(parts(67, 64, 5000), 1);
  EXPECT_EQ(parts(33, 256, 5000), 2);
  EXPECT_EQ(parts(34, 256, 5000), 1);
  EXPECT_EQ(parts(1, 64, 1023), 1);
  EXPECT_EQ(parts(1, 64, 1024), 2);
  EXPECT_EQ(parts(1, 0, 5000), 1);
  EXPECT_EQ(parts(1, 192, 895, 192, 112), 1);
  EXPECT_EQ(parts(1, 192, 896, 192, 112), 2);
  EXPECT_EQ(parts(1, 64, 5000, 192, 112), 11);
  EXPECT_EQ(parts(33, 384, 5000, 192, 112), 2);
  EXPECT_EQ(parts(33, 385, 5000, 192, 112), 1);
  EXPECT_EQ(parts(33, 128, 5000, 64, 128), 2);
  EXPECT_EQ(parts(33, 129, 5000, 64, 128), 1);
}

TEST(TypicalKeysTest, TheAverageOfRaggedSequences) {
  AttentionProblem p = problem_of(4, 2, 1, 100, 500);
  EXPECT_EQ(typical_keys(p), 500);
  p.ragged_k = true;
  EXPECT_EQ(typical_keys(p), 125);
  p.batch_size = 0;
  EXPECT_EQ(typical_keys(p), 500);
}

// By a counter where thread blocks take several items each.
TEST(WorkOrderWgmmaTest, CountedWhereItemsAreMoreThanBlocks) {
  const auto counted = [](const AttentionProblem& p, int rows, int blocks) {
    return WorkOrderWgmma(p, tiles_of(p, rows), blocks).counted;
  };
  for (bool causal : {false, true}) {
    AttentionProblem p = problem_of(2, 66, 1, 128);
    if (causal) p.window_right = 0;
    EXPECT_FALSE(counted(p, 128, 132));
    EXPECT_TRUE(counted(p, 128, 131));
    EXPECT_TRUE(counted(p, 64, 132)) << "264 tiles";
    EXPECT_FALSE(counted(p, 64, 264));
    p.max_len_q += 1;
    EXPECT_TRUE(counted(p, 128, 132));
  }
  EXPECT_TRUE(counted(problem_of(3, 27, 1, 100, 500, true), 128, 132)) << "135 items: 5 slots of each head";
  EXPECT_FALSE(counted(problem_of(3, 26, 1, 100, 500, true), 128, 132));
}

// The heads of a group read the same keys: they are never torn apart.
TEST(WorkOrderWgmmaTest, HeadsThatShareKeysStayTogether) {
  for (int64_t heads_per_kv_head : {1, 2, 3, 8}) {
    for (int64_t len_k : {1, 100, 4096, 1000000, 1 << 30}) {
      for (bool causal : {false, true}) {
        for (bool ragged : {false, true}) {
          AttentionProblem p = problem_of(3, 6 * heads_per_kv_head, heads_per_kv_head, 500, len_k, ragged);
          if (causal) p.window_right = 0;
          const int64_t pairs = WorkOrderWgmma(p, tiles_of(p), 132).pairs;
          EXPECT_GE(pairs, heads_per_kv_head);
          EXPECT_EQ(pairs % heads_per_kv_head, 0);
        }
      }
    }
  }
}

// Causal tiles are taken from several heads at once, as many as the L2 holds the keys of; others head by head.
TEST(WorkOrderWgmmaTest, GroupsOfCausalCallsFitTheL2) {
  const auto pairs = [](int64_t heads_per_kv_head, int64_t len_k, bool causal, int blocks = 132) {
    AttentionProblem p = problem_of(16, 16 * heads_per_kv_head, heads_per_kv_head, 1024, len_k);
    p.head_dim = p.head_dim_v = 128;  // 512 bytes of a key and its value
    if (causal) p.window_right = 0;
    return WorkOrderWgmma(p, tiles_of(p), blocks).pairs;
  };
  EXPECT_EQ(pairs(1, 1024, true), 45) << "24 MB";
  EXPECT_EQ(pairs(4, 1024, true), 4 * 45);
  EXPECT_EQ(pairs(4, 1 << 20, true), 4);
  EXPECT_EQ(pairs(4, 1024, false), 4);
  EXPECT_EQ(pairs(4, 1024, true, 1 << 20), 4 * 16 * 16) << "one item a thread block: the longest first";
}

// Nothing overflows with as many items as select.cpp lets through.
TEST(WorkListTest, AlmostTwoToThe30Items) {
  constexpr int64_t kMost = (INT64_C(1) << 30) - 1;
  struct Shape {
    int64_t batch, num_heads, len_q;
  };
  const Shape shapes[] = {{1, kMost, 1}, {kMost, 1, 128}, {1, 3, kMost / 3 * 128 - 5}, {32767, 32769, 1}, {9, 11, 0}};
  for (Shape shape : shapes) {
    if (shape.len_q == 0) shape.len_q = kMost / (shape.batch * shape.num_heads) * 128;
    AttentionProblem p = problem_of(shape.batch, shape.num_heads, 1, shape.len_q);
    const RowTiles tiles = tiles_of(p);
    const int64_t items = tiles.num_slots * p.num_heads, pairs = shape.batch * shape.num_heads;
    ASSERT_LE(items, kMost);
    for (int64_t group : {INT64_C(1), INT64_C(7), INT64_C(100), INT64_C(65536), pairs - 1, pairs, kMost, INT64_MAX}) {
      SCOPED_TRACE(testing::Message() << items << " items, groups of " << group);
      const WorkList list(p, tiles, SplitPlan(), group, nullptr);
      ASSERT_EQ(list.num_items, items);
      const int64_t in_group = std::clamp<int64_t>(group, 1, pairs);
      const auto expect_place = [&](int64_t index) {
        const WorkList::Place place = list.find(static_cast<int>(index));
        const int64_t of = index / (in_group * list.tiles), size = std::min(in_group, pairs - of * in_group);
        const int64_t rest = index - of * in_group * list.tiles;
        ASSERT_EQ(place.part, 0);
        ASSERT_EQ(place.rank, rest / size) << index;
        ASSERT_EQ(place.pair, of * in_group + rest % size) << index;
      };
      for (int64_t i = 0; i < 300; ++i) {
        expect_place(i % items), expect_place(items - 1 - i % items), expect_place(i * 7654321 % items);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Windows beyond all keys, also those that a caller gave a number.
TEST(WorkListTest, WindowsFit32Bits) {
  for (int64_t window :
       {INT64_C(0), INT64_C(5), int64_t{kFar} - 1, int64_t{kFar}, int64_t{kFar} + 1, INT64_C(1) << 40, kUnlimited}) {
    AttentionProblem p = problem_of(1, 1, 1, 500);
    p.window_left = window, p.window_right = window / 2;
    const WorkList list(p, tiles_of(p), SplitPlan(), 1, nullptr);
    EXPECT_EQ(list.window_left, std::min<int64_t>(window, kFar));
    EXPECT_EQ(list.window_right, std::min<int64_t>(window / 2, kFar));
  }
}

}  // namespace
}  // namespace prefill_wgmma
}  // namespace dlattn::cuda
