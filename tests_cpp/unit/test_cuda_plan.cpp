// How CUDA launches cut their work up: divisions, row tiles, splits, partial results. Pure functions of the host and the device.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "cuda/any/narrow_div.h"
#include "cuda/attn/fast_div.h"
#include "cuda/attn/partial.h"
#include "cuda/attn/row_tile.h"
#include "cuda/attn/split_plan.h"
#include "cuda/attn/work_order.h"

namespace dlattn::cuda {
namespace {

void expect_division(const FastDiv& fast, int64_t n) {
  ASSERT_EQ(fast.div(n), n / fast.divisor) << n << " / " << fast.divisor;
}

TEST(FastDivTest, SmallNumbersAll) {
  for (int64_t d = 1; d <= 300; ++d) {
    const FastDiv fast(d);
    for (int64_t n = 0; n <= 4000; ++n) expect_division(fast, n);
  }
}

TEST(FastDivTest, AroundMultiplesUpToTheLimit) {
  constexpr int64_t kLimit = (INT64_C(1) << 62) - 1;
  std::vector<int64_t> divisors{1, 2, 3, 5, 7, 641, 65537, 6700417, 2147483647, INT64_C(2305843009213693951)};
  for (int bit = 1; bit < 62; ++bit) {
    for (int64_t off : {-1, 0, 1}) divisors.push_back((INT64_C(1) << bit) + off);
  }
  divisors.push_back((INT64_C(1) << 40) + 3);
  divisors.push_back(kLimit);
  std::mt19937_64 random(2);
  for (int i = 0; i < 200; ++i) divisors.push_back(static_cast<int64_t>(random() >> (2 + random() % 60)) + 1);
  for (int64_t d : divisors) {
    if (d < 1 || d > kLimit) continue;
    const FastDiv fast(d);
    for (int64_t off : {0, 1, 2}) expect_division(fast, kLimit - off);
    const int64_t most = kLimit / d;  // multiples
    std::vector<int64_t> multiples{0, 1, 2, 3, most / 2, most - 1, most};
    for (int i = 0; i < 50; ++i) multiples.push_back(static_cast<int64_t>(random() % static_cast<uint64_t>(most + 1)));
    for (int64_t multiple : multiples) {
      if (multiple < 0) continue;
      for (int64_t off : {-2, -1, 0, 1, 2}) {
        const int64_t n = multiple * d + off;
        if (n >= 0 && n <= kLimit) expect_division(fast, n);
      }
    }
  }
}

// A page may be larger than any cache.
TEST(FastDivTest, DivisorsBeyondTheLimitGiveZero) {
  constexpr int64_t kEnd = INT64_C(1) << 62;
  for (int64_t d : {kEnd, kEnd + 1, INT64_MAX}) {
    for (int64_t n : {INT64_C(0), INT64_C(1), kEnd - 1}) expect_division(FastDiv(d), n);
  }
}

TEST(NarrowDivTest, AllItsNumbers) {
  constexpr int64_t kLimit = INT32_MAX;
  std::vector<int64_t> divisors;
  for (int64_t d = 1; d <= 300; ++d) divisors.push_back(d);
  for (int bit = 8; bit < 31; ++bit) {
    for (int64_t off : {-1, 0, 1}) divisors.push_back((INT64_C(1) << bit) + off);
  }
  divisors.push_back(kLimit);
  std::mt19937_64 random(3);
  for (int64_t d : divisors) {
    const NarrowDiv fast(d);
    for (int i = 0; i < 400; ++i) {
      const int64_t multiple = i < 100 ? i : static_cast<int64_t>(random() % static_cast<uint64_t>(kLimit / d + 1));
      for (int64_t n : {multiple * d - 1, multiple * d, multiple * d + 1, kLimit - i}) {
        if (n < 0 || n > kLimit) continue;
        ASSERT_EQ(fast.div(static_cast<uint32_t>(n)), n / d) << n << " / " << d;
      }
    }
  }
}

// Every row of every sequence is in exactly one tile.
void expect_tiles(const RowTiles& tiles, const std::vector<int64_t>& len_q, int64_t heads_per_kv_head, int rows) {
  std::vector<std::vector<int>> seen;
  for (int64_t n : len_q) seen.emplace_back(static_cast<size_t>(n * heads_per_kv_head), 0);
  for (int64_t slot = 0; slot < tiles.num_slots; ++slot) {
    const RowTile tile = tiles.find(slot);
    if (tile.first_row < 0) continue;
    ASSERT_GE(tile.batch, 0);
    ASSERT_LT(tile.batch, static_cast<int64_t>(len_q.size()));
    std::vector<int>& of = seen[static_cast<size_t>(tile.batch)];
    ASSERT_LT(tile.first_row, static_cast<int64_t>(of.size())) << "slot " << slot << ": a tile without rows";
    const auto end = std::min(static_cast<size_t>(tile.first_row + rows), of.size());
    for (size_t row = static_cast<size_t>(tile.first_row); row < end; ++row) ++of[row];
  }
  for (size_t b = 0; b < seen.size(); ++b) {
    for (size_t row = 0; row < seen[b].size(); ++row) ASSERT_EQ(seen[b][row], 1) << "sequence " << b << " row " << row;
  }
}

TEST(RowTilesTest, DenseRowsEachInOneTile) {
  for (int64_t batch : {1, 3}) {
    for (int64_t len_q : {0, 1, 5, 16, 63, 64, 65}) {
      for (int64_t heads_per_kv_head : {1, 3, 8}) {
        for (int rows : {1, 4, 16, 64}) {
          const RowTiles tiles(batch, heads_per_kv_head, len_q, batch * len_q, IndexArray(), rows, false);
          expect_tiles(tiles, std::vector<int64_t>(static_cast<size_t>(batch), len_q), heads_per_kv_head, rows);
        }
      }
    }
  }
}

TEST(RowTilesTest, RaggedRowsEachInOneTile) {
  std::mt19937 random(1);
  for (int round = 0; round < 600; ++round) {
    const int64_t batch = 1 + random() % (round % 10 == 0 ? 300 : 12), heads_per_kv_head = 1 + random() % 9;
    const int rows = 1 << random() % 7;
    const int64_t before = random() % 4, after = random() % 5;  // tokens of no sequence
    std::vector<int64_t> lengths;
    std::vector<int32_t> sums{static_cast<int32_t>(before)};
    for (int64_t b = 0; b < batch; ++b) {
      const unsigned kind = random() % 4;
      lengths.push_back(kind == 0 ? 0 : kind == 1 ? 1 : kind == 2 ? random() % 20 : random() % 150);
      sums.push_back(sums.back() + static_cast<int32_t>(lengths.back()));
    }
    const int64_t total = sums.back() + after;
    const std::vector<int64_t> wide(sums.begin(), sums.end());
    const IndexArray array =
        round % 2 ? IndexArray{sums.data(), DType::kInt32} : IndexArray{wide.data(), DType::kInt64};
    const RowTiles tiles(batch, heads_per_kv_head, total, total, array, rows, true);
    expect_tiles(tiles, lengths, heads_per_kv_head, rows);
    const RowTiles counted(batch, heads_per_kv_head, total, total, IndexArray(), rows, true);
    ASSERT_EQ(counted.num_slots, tiles.num_slots) << "the workspace's size is asked for without the array";
    if (HasFatalFailure()) return;
  }
}

// Entries that nobody has checked: a tile still lies inside its (bounded) sequence.
TEST(RowTilesTest, WrongPrefixSumsGiveNoWildTiles) {
  std::mt19937 random(5);
  constexpr int64_t kTotal = 90;
  for (int round = 0; round < 500; ++round) {
    std::vector<int64_t> sums(6);
    for (int64_t& x : sums) x = static_cast<int64_t>(random() % 400) - 150;
    const RowTiles tiles(5, 2, kTotal, kTotal, {sums.data(), DType::kInt64}, 16, true);
    for (int64_t slot = 0; slot < tiles.num_slots; ++slot) {
      const RowTile tile = tiles.find(slot);
      if (tile.first_row < 0) continue;
      ASSERT_GE(tile.batch, 0);
      ASSERT_LT(tile.batch, 5);
      ASSERT_LT(tile.first_row, 2 * kTotal);
    }
  }
}

// Each (row tile, kv head) of a call is exactly one item. `check(item, before)` compares an item with the one before it.
template <typename Check>
void expect_items(const AttentionProblem& p, const RowTiles& tiles, Check&& check) {
  const WorkOrder order(p, tiles);
  const int64_t count = tiles.num_slots * p.num_kv_heads;
  std::vector<int> seen(static_cast<size_t>(count), 0);
  WorkOrder::Item before = {-1, -1};
  for (int64_t index = 0; index < count; ++index) {
    const WorkOrder::Item item = order.find(index);
    ASSERT_TRUE(item.slot >= 0 && item.slot < tiles.num_slots) << "item " << index << ": slot " << item.slot;
    ASSERT_TRUE(item.kv_head >= 0 && item.kv_head < p.num_kv_heads) << "item " << index << ": head " << item.kv_head;
    ++seen[static_cast<size_t>(item.slot * p.num_kv_heads + item.kv_head)];
    if (index > 0) check(item, before);
    if (::testing::Test::HasFatalFailure()) return;
    before = item;
  }
  for (size_t i = 0; i < seen.size(); ++i) {
    ASSERT_EQ(seen[i], 1) << "slot " << static_cast<int64_t>(i) / p.num_kv_heads << " of head "
                          << static_cast<int64_t>(i) % p.num_kv_heads;
  }
}

AttentionProblem problem_of(int64_t batch, int64_t kv_heads, bool causal) {
  AttentionProblem p;
  p.batch_size = batch, p.num_kv_heads = kv_heads;
  p.kv_heads_div = FastDiv(kv_heads);
  if (causal) p.window_right = 0;
  return p;
}

// Those of a kv head, one after the other, which share its keys.
void expect_heads_apart(const AttentionProblem& p, const RowTiles& tiles) {
  expect_items(p, tiles, [](const WorkOrder::Item& item, const WorkOrder::Item& before) {
    ASSERT_TRUE(item.kv_head > before.kv_head || (item.kv_head == before.kv_head && item.slot > before.slot))
        << "slot " << item.slot << " of head " << item.kv_head << " behind slot " << before.slot << " of head "
        << before.kv_head;
  });
}

TEST(WorkOrderTest, CausalItemsTheLongestFirst) {
  for (int64_t batch : {1, 2, 7}) {
    for (int64_t kv_heads : {1, 2, 5}) {
      for (int64_t len_q : {0, 1, 63, 64, 65, 300}) {
        for (int64_t heads_per_kv_head : {1, 3}) {
          for (int rows : {16, 64, 128}) {
            const RowTiles tiles(batch, heads_per_kv_head, len_q, batch * len_q, IndexArray(), rows, false);
            const AttentionProblem p = problem_of(batch, kv_heads, true);
            ASSERT_TRUE(WorkOrder(p, tiles).longest_first);
            int changes = 0;
            expect_items(p, tiles, [&](const WorkOrder::Item& item, const WorkOrder::Item& before) {
              const int64_t row = tiles.find(item.slot).first_row, row_before = tiles.find(before.slot).first_row;
              ASSERT_LE(row, row_before) << "a tile that sees more keys comes behind one that sees fewer";
              changes += row != row_before;
            });
            if (HasFatalFailure()) return;
            const int64_t tiles_of_one = (len_q * heads_per_kv_head + rows - 1) / rows;
            ASSERT_EQ(changes, std::max<int64_t>(tiles_of_one - 1, 0)) << "all of one length, then those of the next";
          }
        }
      }
    }
  }
}

TEST(WorkOrderTest, OtherItemsHeadByHead) {
  for (int64_t batch : {1, 2, 7}) {
    for (int64_t kv_heads : {1, 2, 5}) {
      for (int64_t len_q : {0, 1, 64, 65, 300}) {
        for (int rows : {16, 128}) {
          const RowTiles tiles(batch, 3, len_q, batch * len_q, IndexArray(), rows, false);
          expect_heads_apart(problem_of(batch, kv_heads, false), tiles);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

// How long each sequence is stands on the device: their items come head by head, causal or not.
TEST(WorkOrderTest, RaggedItemsHeadByHead) {
  std::mt19937 random(9);
  for (int round = 0; round < 200; ++round) {
    const int64_t batch = 1 + random() % 9, kv_heads = 1 + random() % 5, heads_per_kv_head = 1 + random() % 4;
    std::vector<int64_t> lengths, sums{0};
    for (int64_t b = 0; b < batch; ++b) {
      lengths.push_back(random() % 3 == 0 ? 0 : random() % 200);
      sums.push_back(sums.back() + lengths.back());
    }
    const int rows = 16 << random() % 4;
    const IndexArray array{sums.data(), DType::kInt64};
    const RowTiles tiles(batch, heads_per_kv_head, sums.back(), sums.back(), array, rows, true);
    expect_tiles(tiles, lengths, heads_per_kv_head, rows);
    for (bool causal : {false, true}) {
      const AttentionProblem p = problem_of(batch, kv_heads, causal);
      ASSERT_FALSE(WorkOrder(p, tiles).longest_first);
      expect_heads_apart(p, tiles);
    }
    if (HasFatalFailure()) return;
  }
}

// Every key is in exactly one part, and no sequence gets more parts than there is workspace for.
void expect_parts(const SplitPlan& plan, int64_t keys) {
  const int64_t parts = plan.num_splits(keys);
  ASSERT_GE(parts, 1) << keys << " keys";
  ASSERT_LE(parts, plan.max_splits) << keys << " keys";
  constexpr int64_t kFirst = 37;  // a window's left end
  int64_t next = kFirst;
  for (int64_t part = 0; part < parts; ++part) {
    const KeyRange range = plan.part({kFirst, kFirst + keys}, part);
    ASSERT_EQ(range.begin, next) << keys << " keys, part " << part;
    ASSERT_TRUE(range.end > range.begin || keys == 0) << keys << " keys, part " << part << " of " << parts;
    next = range.end;
  }
  ASSERT_EQ(next, kFirst + keys) << keys << " keys, " << parts << " parts";
  for (int64_t part : {parts, parts + 5}) {
    const KeyRange range = plan.part({kFirst, kFirst + keys}, part);
    ASSERT_GE(range.begin, range.end) << keys << " keys: part " << part << " of " << parts << " has keys";
  }
}

// 8 kv heads of head_dim 128 in 16 bits, groups of 4, on an H200: attention_decode_mma unless changed.
SplitInput input_of(int64_t items, int64_t max_keys) {
  SplitInput in;
  in.items = items, in.max_keys = max_keys;
  in.min_chunk = 64;
  in.num_sms = 132, in.blocks_per_sm = 2;
  in.bytes_per_key = 512, in.bytes_per_split = 4 * 130 * 4 * 2;
  return in;
}

std::vector<SplitInput> inputs() {
  std::vector<SplitInput> all;
  for (int sms : {1, 46, 132}) {
    for (int blocks : {1, 2, 3, 6}) {
      for (int64_t items : {1, 2, 8, 31, 64, 132, 133, 300, 700, 5000, 1000000}) {
        for (int64_t max_keys : {0, 1, 127, 128, 129, 1000, 2049, 5000, 70000, 1000000}) {
          SplitInput in = input_of(items, max_keys);
          in.num_sms = sms, in.blocks_per_sm = blocks;
          in.min_chunk = blocks == 3 ? 128 : 64;
          in.bytes_per_ns_of_block = blocks == 3 ? 12.0 : 55.0;  // as the simt kernels'
          in.lengths_differ = (items + max_keys) % 3 != 0;
          all.push_back(in);
        }
      }
    }
  }
  return all;
}

testing::Message text_of(const SplitInput& in) {
  return testing::Message() << in.items << " items, at most " << in.max_keys << " keys, " << in.num_sms << " SMs with "
                            << in.blocks_per_sm << " thread blocks";
}

TEST(SplitPlanTest, EveryKeyIsInOnePart) {
  std::mt19937_64 random(8);
  for (const SplitInput& in : inputs()) {
    const SplitPlan plan = SplitPlan::make(in);
    SCOPED_TRACE(text_of(in));
    for (int64_t keys = 0; keys <= std::min<int64_t>(in.max_keys, 300); ++keys) expect_parts(plan, keys);
    for (int i = 0; i < 20; ++i) {
      expect_parts(plan, static_cast<int64_t>(random() % static_cast<uint64_t>(in.max_keys + 1)));
    }
    std::vector<int64_t> edges{in.max_keys};
    for (int64_t n = 1; n < 10; ++n) edges.push_back(n * plan.max_chunk);
    for (const SplitPlan::Choice& choice : plan.choices) edges.push_back(choice.min_keys);
    for (int64_t edge : edges) {
      for (int64_t off : {-33, -32, -1, 0, 1, 31, 32}) {
        if (edge + off >= 0 && edge <= in.max_keys && edge + off <= in.max_keys) expect_parts(plan, edge + off);
      }
    }
    const int64_t slots = static_cast<int64_t>(in.num_sms) * in.blocks_per_sm;
    EXPECT_LE(in.items * plan.workspace_splits, std::max(in.items, 16 * slots)) << "the workspace is bounded";
    EXPECT_LE(plan.max_splits, plan.workspace_splits);
    if (HasFailure()) return;
  }
}

TEST(SplitPlanTest, NoLengthHasMoreParts) {
  for (const SplitInput& in : inputs()) {
    if (in.max_keys > 5000) continue;
    const SplitPlan plan = SplitPlan::make(in);
    for (int64_t keys = 0; keys <= in.max_keys; ++keys) {
      ASSERT_LE(plan.num_splits(keys), plan.max_splits) << text_of(in) << ", " << keys << " keys";
    }
  }
}

// The size of the workspace is asked for without the array of lengths.
TEST(SplitPlanTest, TheWorkspaceDoesNotDependOnLengths) {
  for (SplitInput in : inputs()) {
    in.lengths_differ = true;
    const int64_t splits = SplitPlan::make(in).workspace_splits;
    in.lengths_differ = false;
    EXPECT_EQ(SplitPlan::make(in).workspace_splits, splits) << text_of(in);
  }
}

// From 1 part on, longer keys get more; what is chosen is the fastest by the model.
TEST(SplitPlanTest, ChoicesAreTheModelsEnvelope) {
  for (const SplitInput& in : inputs()) {
    const SplitPlan plan = SplitPlan::make(in);
    EXPECT_EQ(plan.choice_of(0).splits.divisor, 1) << text_of(in);
    for (int i = 1; i < SplitPlan::kMaxChoices; ++i) {
      const SplitPlan::Choice &before = plan.choices[i - 1], &choice = plan.choices[i];
      if (choice.min_keys > in.max_keys) continue;
      EXPECT_GE(choice.min_keys, before.min_keys) << text_of(in);
      EXPECT_GT(choice.splits.divisor, before.splits.divisor) << text_of(in);
      const auto keys = static_cast<double>(choice.min_keys);
      const auto us = [&](const SplitPlan::Choice& of) {
        const SplitPlan::Cost cost = SplitPlan::cost_of(in, of.splits.divisor);
        return cost.fixed + cost.per_key * keys;
      };
      EXPECT_LE(us(choice), us(before) + 1e-6) << text_of(in);
    }
  }
}

// Prototypes were within a few per cent of their best with these.
TEST(SplitPlanTest, ChoicesOnAnH200) {
  const auto splits = [](int64_t items, int64_t keys, bool differ) {
    SplitInput in = input_of(items, keys);
    in.lengths_differ = differ;
    return SplitPlan::make(in).num_splits(keys);
  };
  for (bool differ : {false, true}) {
    for (int64_t items : {8, 64, 128, 512}) {
      for (int64_t keys : {0, 1, 16, 64, 128}) EXPECT_EQ(splits(items, keys, differ), 1) << items << ", " << keys;
    }
    EXPECT_EQ(splits(8, 512, differ), 8) << "one tile for each warp";
    EXPECT_EQ(splits(8, 2048, differ), 32);
    EXPECT_EQ(splits(8, 8192, differ), 32) << "two thread blocks on an SM";
    EXPECT_GE(splits(8, 131072, differ), 32);
    EXPECT_LE(splits(8, 131072, differ), 33);
    EXPECT_EQ(splits(64, 2048, differ), 4);
    EXPECT_EQ(splits(128, 2048, differ), 1);
    EXPECT_EQ(splits(512, 1024, differ), 1);
    EXPECT_EQ(splits(1024, 2048, differ), 1);
  }
  EXPECT_EQ(splits(64, 131072, false), 4);
  EXPECT_EQ(splits(64, 131072, true), 16) << "8192 keys at most";
  EXPECT_EQ(splits(128, 8192, false), 1) << "97 % of the SMs are busy";
  EXPECT_EQ(splits(128, 16384, true), 2) << "one long sequence would keep 8 SMs busy";
  EXPECT_EQ(splits(512, 8192, false), 1);
  EXPECT_EQ(splits(512, 16384, true), 2);
  EXPECT_GT(splits(300, 8192, false), 1) << "36 thread blocks of a second wave would be alone";
}

// A cache for 131072 keys: each sequence gets what its own length is worth.
TEST(SplitPlanTest, LongCapacityShortSequences) {
  const SplitPlan plan = SplitPlan::make(input_of(64, 131072));
  EXPECT_EQ(plan.num_splits(64), 1);
  EXPECT_EQ(plan.num_splits(2048), 4);
  EXPECT_EQ(plan.num_splits(131072), 16);
  EXPECT_LE(plan.max_splits, 66);
}

TEST(PartialsTest, TheLastRowEndsAtTheWorkspacesEnd) {
  for (int head_dim_v : {1, 4, 63, 64, 128, 256}) {
    for (int rows : {1, 4, 16}) {
      const SplitPlan plan = SplitPlan::make(input_of(7, 5000));
      ASSERT_GT(plan.max_splits, 1);
      const int64_t bytes = Partials::bytes(7, plan, rows, head_dim_v);
      std::vector<float> memory(static_cast<size_t>(bytes) / sizeof(float));
      const Partials partials(memory.data(), 7, plan, rows, head_dim_v);
      const int64_t last = partials.index(6, plan.max_splits - 1, rows - 1);
      EXPECT_EQ(partials.index(0, 0, 0), 0);
      EXPECT_EQ(partials.acc, memory.data());
      EXPECT_EQ(partials.acc + (last + 1) * partials.row_floats, partials.row_max);
      EXPECT_EQ(partials.row_max + last + 1, partials.row_sum);
      EXPECT_EQ(partials.row_sum + last + 1, memory.data() + memory.size());
      EXPECT_GE(partials.row_floats, head_dim_v);
    }
  }
}

}  // namespace
}  // namespace dlattn::cuda
