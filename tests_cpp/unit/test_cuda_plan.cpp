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

// Every key is in exactly one part, and no sequence gets more parts than there is workspace for.
void expect_parts(const SplitPlan& plan, int64_t keys) {
  const int64_t parts = plan.num_splits(keys);
  ASSERT_GE(parts, 1) << keys << " keys";
  ASSERT_LE(parts, plan.max_splits) << keys << " keys, " << plan.splits << " splits wanted";
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

TEST(SplitPlanTest, EveryKeyIsInOnePart) {
  std::mt19937_64 random(8);
  for (int64_t slots : {1, 46, 132, 264, 528, 1056}) {
    for (int64_t items : {1, 2, 8, 31, 64, 132, 133, 700, 5000, 1000000}) {
      for (int64_t max_keys : {0, 1, 127, 128, 129, 1000, 2047, 2048, 2049, 5000, 70000, 1000000}) {
        const SplitPlan plan = SplitPlan::make(items, max_keys, slots);
        SCOPED_TRACE(::testing::Message() << items << " items, at most " << max_keys << " keys, " << slots << " slots");
        for (int64_t keys = 0; keys <= std::min<int64_t>(max_keys, 700); ++keys) expect_parts(plan, keys);
        for (int i = 0; i < 100; ++i) {
          expect_parts(plan, static_cast<int64_t>(random() % static_cast<uint64_t>(max_keys + 1)));
        }
        for (int64_t off : {0, 1, 2, 31, 32, 33}) expect_parts(plan, std::max<int64_t>(max_keys - off, 0));
        for (int64_t n = 1; n < 40; ++n) {
          for (int64_t off : {-1, 0, 1}) {
            const int64_t keys = n * plan.max_chunk + off;
            if (keys >= 0 && keys <= max_keys) expect_parts(plan, keys);
          }
        }
        EXPECT_LE(items * plan.max_splits, std::max(items, 16 * slots)) << "the workspace is bounded";
        if (HasFailure()) return;
      }
    }
  }
}

TEST(PartialsTest, TheLastRowEndsAtTheWorkspacesEnd) {
  for (int head_dim_v : {1, 4, 63, 64, 128, 256}) {
    for (int rows : {1, 4, 16}) {
      const SplitPlan plan = SplitPlan::make(7, 5000, 132);
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
