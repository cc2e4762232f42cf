// Scores that rise, jump, are equal and huge, infinite or NaN, on every kernel of the CUDA backend against the CPU backend.
#include <cmath>

#include "ops/kernel_rows.h"
#include "ops/score_cases.h"

namespace dlattn::test {
namespace {

using ScoresCudaTest = CudaTestWithParam<ScoreCase>;

TEST_P(ScoresCudaTest, EveryRowMatchesTheCpu) {
  DenseProblem problem = score_problem(GetParam());
  expect_every_row(problem, stream());
}

INSTANTIATE_TEST_SUITE_P(Small, ScoresCudaTest, ::testing::ValuesIn(small_score_cases()));
INSTANTIATE_TEST_SUITE_P(Courses, ScoresCudaTest, ::testing::ValuesIn(score_cases()));
INSTANTIATE_TEST_SUITE_P(ManyItems, ScoresCudaTest, ::testing::ValuesIn(many_items_score_cases()));

class ScoresCudaRulesTest : public CudaTest {
 protected:
  // 66 rows, which one tile holds, and 140, which two do.
  static std::vector<AttentionCase> calls(DType dtype) {
    AttentionCase c;
    c.dtype = dtype, c.batch_size = 1, c.num_heads = 2, c.num_kv_heads = 1, c.head_dim = c.head_dim_v = 64;
    std::vector<AttentionCase> all(4, c);
    all[0].seqlen_q = 1, all[0].seqlen_k = 300;
    all[1].seqlen_q = 33, all[1].seqlen_k = 1100;
    all[2].seqlen_q = 70, all[2].seqlen_k = 300;
    all[3].seqlen_q = 70, all[3].seqlen_k = 300, all[3].mask = MaskKind::kBool2D;
    return all;
  }

  // `change(problem)`
  template <typename Change>
  void expect_every_row_of(const std::vector<AttentionCase>& cases, Change&& change) {
    for (const AttentionCase& c : cases) {
      SCOPED_TRACE(::testing::Message() << c);
      DenseProblem problem(c);
      change(problem);
      expect_every_row(problem, stream());
      if (HasFailure()) return;
    }
  }

  // Each in both dtypes.
  template <typename Change>
  void expect_every_row_of_all(Change&& change) {
    for (DType dtype : {DType::kFloat16, DType::kBFloat16}) expect_every_row_of(calls(dtype), change);
  }
};

void set_key(DenseProblem& problem, int64_t j, double value) {
  for (int64_t d = 0; d < problem.c.head_dim; ++d) problem.k.set(value, 0, j, 0, d);
}

// All keys weigh the same, whatever the score's own last place is worth.
class EqualScoresCudaTest : public CudaTestWithParam<double> {};

TEST_P(EqualScoresCudaTest, WeighTheSame) {
  for (DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    if (dtype == DType::kFloat16 && GetParam() > 65504.0) continue;
    for (double sign : {1.0, -1.0}) {
      for (bool masked : {false, true}) {
        for (int64_t seqlen_q : {1, 70}) {
          AttentionCase c;
          c.dtype = dtype, c.batch_size = 1, c.seqlen_q = seqlen_q, c.seqlen_k = 300, c.num_heads = 2;
          c.num_kv_heads = 1, c.head_dim = c.head_dim_v = 64;
          if (masked) c.mask = MaskKind::kBool2D;
          SCOPED_TRACE(::testing::Message() << c << ", q = " << GetParam() << ", k = " << sign * GetParam());
          DenseProblem problem(c);
          problem.q.fill(GetParam()), problem.k.fill(sign * GetParam());
          expect_every_row(problem, stream());
          if (HasFailure()) return;
        }
      }
    }
  }
}

// Scores of 8e4, 8e6, 2.9e8, 2.9e10, 1.4e11, 8e20 and 8e36.
INSTANTIATE_TEST_SUITE_P(Huge, EqualScoresCudaTest, ::testing::Values(100.0, 1e3, 6e3, 6e4, 133120.0, 1e10, 1e18));

TEST_F(ScoresCudaRulesTest, InfiniteScores) {
  for (int64_t at : {3, 70, 299}) {  // in the first tile, in a later one, the last key
    expect_every_row_of_all([at](DenseProblem& problem) {
      problem.k.set(INFINITY, 0, at, 0, 0);
      for (int64_t i = 0; i < problem.c.seqlen_q; ++i) {  // +inf, -inf, NaN
        for (int64_t h = 0; h < 2; ++h) problem.q.set(i % 5 == 1 ? -1.0 : i % 5 == 2 ? 0.0 : 1.0, 0, i, h, 0);
      }
    });
  }
}

// Scores of -inf hide their keys, all of a row's as well.
TEST_F(ScoresCudaRulesTest, MinusInfiniteScores) {
  for (int64_t visible_from : {1, 64, 150, 100000}) {
    expect_every_row_of_all([visible_from](DenseProblem& problem) {
      for (int64_t j = 0; j < std::min(visible_from, problem.c.seqlen_k); ++j) problem.k.set(-INFINITY, 0, j, 0, 0);
      for (int64_t i = 0; i < problem.c.seqlen_q; ++i) {
        for (int64_t h = 0; h < 2; ++h) problem.q.set(1.0, 0, i, h, 0);
      }
    });
  }
}

// Those of the last keys: all of the tile with which wgmma begins, and a part of it.
TEST_F(ScoresCudaRulesTest, MinusInfiniteScoresOfTheLastKeys) {
  for (int64_t hidden : {1, 64, 150}) {
    expect_every_row_of_all([hidden](DenseProblem& problem) {
      const int64_t n = problem.c.seqlen_k;
      problem.c.scale = 1.0f;
      const double seen = hidden == 64 ? -300.0 : 0.0;  // -300: far below what an exponential holds
      for (int64_t j = 0; j < n; ++j) problem.k.set(j < n - hidden ? seen : -INFINITY, 0, j, 0, 0);
      for (int64_t i = 0; i < problem.c.seqlen_q; ++i) {
        for (int64_t h = 0; h < 2; ++h) problem.q.set(1.0, 0, i, h, 0);
      }
    });
  }
}

// A NaN reaches the rows that see it and no other, whichever warp or tile they are in.
TEST_F(ScoresCudaRulesTest, NanScoresReachTheRowsThatSeeThem) {
  for (int64_t from_the_end : {1, 20, 60}) {
    expect_every_row_of_all([from_the_end](DenseProblem& problem) {
      problem.c.is_causal = true;
      set_key(problem, problem.c.seqlen_k - from_the_end, NAN);
    });
  }
  expect_every_row_of_all([](DenseProblem& problem) {  // of one query, all of whose scores it makes NaN
    problem.q.set(NAN, 0, problem.c.seqlen_q / 2, 1, 5);
  });
  expect_every_row_of_all([](DenseProblem& problem) {  // and a jump in another row
    problem.q.set(NAN, 0, 0, 1, 5);
    problem.k.set(INFINITY, 0, 200, 0, 7);
    for (int64_t i = 0; i < problem.c.seqlen_q; ++i) {
      for (int64_t h = 0; h < 2; ++h) problem.q.set(-1.0, 0, i, h, 7);
    }
    problem.q.set(40.0, 0, 0, 0, 9);
    problem.k.set(40.0, 0, 250, 0, 9);
  });
}

// Exponentials and values whose product only fits float32 as long as the exponentials are small.
TEST_F(ScoresCudaRulesTest, LargeValuesUnderASpike) {
  for (double height : {30.0, 60.0}) {
    for (DType dtype : {DType::kFloat16, DType::kBFloat16}) {
      for (int64_t seqlen_q : {9, 70}) {
        ScoreCase c;
        c.call.dtype = dtype, c.call.batch_size = 1, c.call.num_heads = 2, c.call.num_kv_heads = 1;
        c.call.head_dim = c.call.head_dim_v = 64, c.call.seqlen_q = seqlen_q, c.call.seqlen_k = 333;
        c.course = Course::kSpike, c.height = height;
        SCOPED_TRACE(::testing::Message() << c);
        DenseProblem problem = score_problem(c);
        const double largest = dtype == DType::kFloat16 ? 6e4 : 1e20;
        problem.v.fill_random(problem.random, largest / 2, largest);
        expect_every_row(problem, stream());
        if (HasFailure()) return;
      }
    }
  }
}

// Masks that hide softly, with the lowest number or -1e9 instead of -inf.
TEST_F(ScoresCudaRulesTest, FiniteMasksThatHide) {
  for (Padding padding : {Padding::kSomeRowsLowest, Padding::kSomeKeysLowest, Padding::kLeft, Padding::kMixed}) {
    SCOPED_TRACE(::testing::Message() << "padding " << static_cast<int>(padding));
    std::vector<AttentionCase> cases = two_head_cases({1, 9, 70}, 150);
    for (AttentionCase& c : cases) c.mask = MaskKind::kFloat4D;
    expect_every_row_of(cases, [padding](DenseProblem& problem) {
      for (int64_t i = 0; i < problem.c.seqlen_q; ++i) {
        for (int64_t j = 0; j < problem.c.seqlen_k; ++j) problem.mask.set(padding_at(padding, i, j), 0, 0, i, j);
      }
    });
  }
}

// Scores up to about 40 beside a row of NaNs.
TEST_F(ScoresCudaRulesTest, LargeScaleBesideANanRow) {
  for (float scale : {20.0f, 100.0f}) {
    std::vector<AttentionCase> cases = two_head_cases({1, 9, 70}, 150);
    for (AttentionCase& c : cases) c.scale = scale;
    expect_every_row_of(cases, [](DenseProblem& problem) {
      normalize(problem.q), normalize(problem.k);
      for (int64_t d = 0; d < problem.c.head_dim; ++d) problem.q.set(NAN, 0, problem.c.seqlen_q / 2, 1, d);
    });
  }
}

// Of any size; every third row has scores of 0.
TEST_F(ScoresCudaRulesTest, SoftcapsOfAnySize) {
  for (float softcap : {1e-39f, 1e-3f, 0.5f, 50.0f, 1e4f, 1e6f, 3e38f}) {
    std::vector<AttentionCase> cases = two_head_cases({1, 9, 70}, 150);
    for (AttentionCase& c : cases) c.softcap = softcap;
    expect_every_row_of(cases, [](DenseProblem& problem) {
      for (int64_t i = 0; i < problem.c.seqlen_q; ++i) {
        for (int64_t h = 0; h < 2; ++h) {
          for (int64_t d = 0; (i + h) % 3 == 0 && d < problem.c.head_dim; ++d) problem.q.set(0.0, 0, i, h, d);
        }
      }
    });
  }
}

// Rows that see no key are 0 even if the first value, which all other rows see, is NaN.
TEST_F(ScoresCudaRulesTest, RowsWithoutKeysBesideANanValue) {
  for (int64_t seqlen_k : {3, 30, 130}) {
    std::vector<AttentionCase> cases = two_head_cases({seqlen_k + 1, seqlen_k + 20}, seqlen_k);
    for (AttentionCase& c : cases) c.is_causal = true;
    expect_every_row_of(cases, [](DenseProblem& problem) {
      for (int64_t d = 0; d < problem.c.head_dim_v; ++d) problem.v.set(NAN, 0, 0, 0, d);
    });
  }
}

// All scores are 0, although the scale times log2(e) is infinite.
TEST_F(ScoresCudaRulesTest, HugeScaleOfZeros) {
  std::vector<AttentionCase> cases = two_head_cases({1, 9, 70}, 150);
  for (AttentionCase& c : cases) c.scale = 3e38f;
  expect_every_row_of(cases, [](DenseProblem& problem) { problem.q.fill(0.0); });
}

TEST_F(ScoresCudaRulesTest, ManyEqualScoresBesideALateSpike) {
  DenseProblem problem = many_equal_scores_problem();
  expect_every_row(problem, stream());
}

// All rows take a call whatever the strides of axes of size 1 are.
TEST_F(ScoresCudaRulesTest, OddStridesOfAxesOfSizeOne) {
  std::vector<AttentionCase> cases = two_head_cases({1}, 300);
  for (const AttentionCase& c : two_head_cases({1, 70}, 1)) cases.push_back(c);
  for (AttentionCase& c : cases) {
    c.batch_size = 2;
    SCOPED_TRACE(::testing::Message() << c);
    OddStridesProblem problem(c);
    DeviceTensors device(problem.tensors(), stream());
    EXPECT_EQ(rows_for(device.on_device(problem.params())), rows_for(device.on_device(problem.DenseProblem::params())));
    expect_every_row(problem, stream());
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace dlattn::test
