// Which calls the mma rows take. Pure functions: no GPU needed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "cuda/kernel_table.h"
#include "cuda/launch_plan.h"
#include "cuda/problem.h"
#include "cuda/select.h"
#include "cuda_archs.h"
#include "unit/select_calls.h"

namespace dlattn::cuda {
namespace {

// The tensor cores' rows, and a device that has them. Skipped where the build has no code for it.
class SelectMmaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!family_runs_on(Family::kMma, h200())) GTEST_SKIP() << "this build has no mma code for compute capability 9.0";
  }

  static std::vector<KernelRow> rows() { return rows_of(Family::kMma); }
  // What explain() says of a call under DLATTN_KERNEL=mma that no row takes.
  static std::string refusal(const AttentionProblem& problem, const DeviceCaps& caps = h200()) {
    const Selection selection = select_attention(kernel_table(), problem, caps, Family::kMma);
    EXPECT_EQ(selection.row, -1) << "expected no row";
    return selection.reason;
  }
};

const std::string kNoMma = "DLATTN_KERNEL is mma: no kernel takes the call: ";

TEST_F(SelectMmaTest, TypicalCallsOnAnH200) {
  struct Call {
    int64_t batch, seqlen_q, seqlen_k, heads, kv_heads, dim, dim_v;
    const char* row;  // without dtype
  };
  const Call calls[] = {
      {1, 4096, 4096, 32, 8, 128, 128, "attention_prefill_mma_*_hd128"},
      {4, 2048, 2048, 16, 16, 64, 64, "attention_prefill_mma_*_hd64"},
      {2, 1024, 1024, 16, 16, 80, 80, "attention_prefill_mma_*_hd96"},
      {2, 1024, 1024, 16, 16, 72, 72, "attention_prefill_mma_*_hd96"},
      {2, 1024, 1024, 16, 16, 96, 96, "attention_prefill_mma_*_hd96"},
      {2, 1024, 1024, 16, 16, 112, 112, "attention_prefill_mma_*_hd128"},
      {1, 4096, 4096, 16, 16, 160, 160, "attention_prefill_mma_*_hd192"},
      {1, 4096, 4096, 16, 16, 192, 128, "attention_prefill_mma_*_hd192"},
      {1, 4096, 4096, 16, 16, 64, 200, "attention_prefill_mma_*_hd256"},
      {1, 4096, 4096, 8, 4, 256, 256, "attention_prefill_mma_*_hd256"},
      {8, 1, 4096, 32, 8, 128, 128, "attention_decode_mma_*_hd128"},
      {8, 1, 4096, 32, 8, 64, 64, "attention_decode_mma_*_hd64"},
      {8, 1, 4096, 16, 1, 128, 128, "attention_decode_mma_*_hd128"},
      {8, 1, 4096, 16, 4, 256, 256, "attention_decode_mma_*_hd256"},
      {8, 4, 4096, 32, 8, 128, 128, "attention_decode_mma_*_hd128"},
  };
  for (DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    for (const Call& c : calls) {
      std::string name = c.row;
      name.replace(name.find('*'), 1, dtype == DType::kFloat16 ? "f16" : "bf16");
      AttentionParams p = dense(dtype, c.batch, c.seqlen_q, c.seqlen_k, c.heads, c.kv_heads, c.dim, c.dim_v);
      EXPECT_EQ(chosen(p, h200(), Family::kMma).name, name);
      if (c.seqlen_q <= 16) {
        EXPECT_EQ(chosen(p, h200()).name, name);
      }
      p.options.is_causal = true;
      EXPECT_EQ(chosen(p, h200(), Family::kMma).name, name) << "causal";
    }
  }
}

// A cache is read once for each tile of rows.
TEST_F(SelectMmaTest, TheCacheIsReadOnceIfATileHoldsAllRows) {
  for (DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    for (const int64_t dim : {64, 80, 128}) {
      for (const int64_t rows : {2, 4, 5, 16, 17, 32, 64, 128}) {  // one row has kernels of its own
        if (dim == 64 && rows > 16 && rows <= 32) continue;        // small reads: the decode twice, about as fast
        const int64_t heads_per_kv_head = rows % 4 == 0 ? 4 : 1;
        const int64_t seqlen_q = rows / heads_per_kv_head;
        const AttentionParams p = dense(dtype, 8, seqlen_q, 16384, 8 * heads_per_kv_head, 8, dim, dim);
        const KernelRow row = chosen(p, h200());
        EXPECT_GE(row.tile_rows, rows) << row.name;
        EXPECT_TRUE(row.family == Family::kMma) << row.name << ", " << rows << " rows";
        EXPECT_TRUE(splits_keys(row, make_problem(p))) << row.name << ", " << rows << " rows";
      }
    }
  }
}

// An mma prefill cuts the keys only if it then reads them once.
TEST_F(SelectMmaTest, PrefillSplitsTheKeysOfOneTile) {
  for (const KernelRow& row : rows()) {
    if (row.phase != Phase::kPrefill) continue;
    const auto splits = [&](int64_t seqlen_q, int64_t heads_per_kv_head) {
      return splits_keys(row, make_problem(dense(DType::kFloat16, 1, seqlen_q, 9999, heads_per_kv_head, 1, 64, 64)));
    };
    EXPECT_TRUE(splits(row.tile_rows, 1)) << row.name;
    EXPECT_FALSE(splits(row.tile_rows + 1, 1)) << row.name;
    EXPECT_TRUE(splits(row.tile_rows / 4, 4)) << row.name;
    EXPECT_FALSE(splits(row.tile_rows / 4 + 1, 4)) << row.name;
    VarlenAttentionParams ragged;
    ragged.batch_size = 2, ragged.total_q = 2, ragged.total_k = 9999, ragged.num_heads = ragged.num_kv_heads = 1;
    EXPECT_FALSE(splits_keys(row, make_problem(ragged))) << row.name << ": how many rows there are is on the device";
  }
}

// Rows of q, k and v are read 16 bytes at a time.
TEST_F(SelectMmaTest, UnalignedRowsAreLeftToSimt) {
  const std::string reason = "rows of q, k and v at multiples of 16 bytes, head_dim and head_dim_v multiples of 8";
  alignas(16) static char memory[32];
  for (DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    const std::string no_dtype = std::string("no ") + test::dtype_name(dtype);
    for (int64_t seqlen_q : {1, 4, 16, 500}) {
      AttentionParams aligned = dense(dtype, 2, seqlen_q, 500, 8, 2, 64, 64);
      aligned.q = aligned.k = aligned.v = aligned.out = memory;
      aligned.q_stride_seq = 64 * 8, aligned.k_stride_seq = aligned.v_stride_seq = 64 * 2;
      aligned.q_stride_head = aligned.k_stride_head = aligned.v_stride_head = 64;
      aligned.q_stride_batch = aligned.k_stride_batch = aligned.v_stride_batch = 1 << 20;
      aligned.out_stride_seq = 64 * 8, aligned.out_stride_head = 64, aligned.out_stride_batch = 1 << 20;
      ASSERT_TRUE(chosen(aligned, h200(), Family::kMma).family == Family::kMma);
      const auto expect_simt = [&](const char* what, const AttentionParams& p) {
        SCOPED_TRACE(what);
        const KernelRow row = chosen(p, h200());
        EXPECT_TRUE(row.family == Family::kSimt && row.launch != nullptr) << row.name;
        EXPECT_NE(refusal(make_problem(p)).find(reason), std::string::npos) << refusal(make_problem(p));
        for (const KernelRow& mma : rows()) {
          EXPECT_EQ(why_not(mma, make_problem(p), h200()), mma.takes(dtype) ? reason : no_dtype) << mma.name;
        }
      };
      AttentionParams p = aligned;
      p.q = memory + 2;
      expect_simt("q", p);
      p = aligned, p.k = memory + 8;
      expect_simt("k", p);
      p = aligned, p.v = memory + 2;
      expect_simt("v", p);
      p = aligned, p.k_stride_seq += 4;
      expect_simt("k_stride_seq", p);
      p = aligned, p.v_stride_head += 1;
      expect_simt("v_stride_head", p);
      p = aligned, p.q_stride_batch += 2;
      expect_simt("q_stride_batch", p);
      p = aligned, p.head_dim = 60;
      expect_simt("head_dim", p);
      p = aligned, p.head_dim_v = 36;
      expect_simt("head_dim_v", p);
      p = aligned, p.out = memory + 2, p.out_stride_head += 1;  // of out, only the speed depends on it
      EXPECT_STREQ(chosen(p, h200(), Family::kMma).name, chosen(aligned, h200(), Family::kMma).name);
    }
  }
}

// Softcap, mask, ALiBi, and a scale under which the largest product is not the largest score.
TEST_F(SelectMmaTest, ScoreOptionsNeedARowThatHasThem) {
  static const float slope = 0.5f;
  static const bool keep = true;
  std::vector<AttentionOptions> all(7);
  all[0].softcap = 2.0f;
  all[1].mask.data = &keep, all[1].mask.dtype = DType::kBool;
  all[2].alibi_slopes.data = &slope;
  all[3].scale = 0.0f;
  all[4].scale = -0.1f;
  all[5].scale = std::numeric_limits<float>::quiet_NaN();
  all[6].softcap = 1.0f, all[6].mask.data = &slope, all[6].mask.dtype = DType::kFloat32;
  for (const AttentionOptions& options : all) {
    const auto n = &options - all.data();
    for (DType dtype : {DType::kFloat16, DType::kBFloat16}) {
      for (int64_t dim : {8, 64, 80, 96, 128, 160, 192, 256}) {
        for (int64_t seqlen_q : {1, 4, 16, 100, 2000}) {
          AttentionParams p = dense(dtype, 2, seqlen_q, 2000, 8, 2, dim, dim);
          EXPECT_TRUE(chosen(p, h200()).launch != nullptr);
          p.options = options;
          const KernelRow mma = chosen(p, h200(), Family::kMma);
          EXPECT_TRUE(mma.launch != nullptr && mma.score_options) << "options " << n << " get " << mma.name;
          const KernelRow any = chosen(p, h200());
          EXPECT_TRUE(any.score_options || (any.softcap && n == 0)) << "options " << n << " get " << any.name;
          for (const KernelRow& row : rows()) {
            if (row.takes(dtype) && row.max_head_dim >= dim && !row.score_options) {
              EXPECT_EQ(why_not(row, make_problem(p), h200()), "no softcap, mask or ALiBi, and a positive scale");
            }
          }
        }
      }
    }
  }
  AttentionParams p = dense(DType::kFloat16, 1, 4096, 4096, 16, 16, 128, 128);
  p.options.softcap = 30.0f;
  EXPECT_STREQ(chosen(p, h200(), Family::kMma).name, "attention_prefill_mma_f16_hd128_options");
  p.head_dim = p.head_dim_v = 80;
  EXPECT_STREQ(chosen(p, h200(), Family::kMma).name, "attention_prefill_mma_f16_hd128_options");
  static const float sink = 0.0f;
  p.options.softcap = 0.0f, p.options.window_left = 100, p.options.sinks.data = &sink;  // all rows have these
  EXPECT_STREQ(chosen(p, h200(), Family::kMma).name, "attention_prefill_mma_f16_hd96");
}

TEST_F(SelectMmaTest, RefusalsSayWhatIsLacking) {
  const AttentionParams half = dense(DType::kFloat16, 1, 100, 100, 4, 4, 64, 64);
  ASSERT_TRUE(chosen(half, h200(), Family::kMma).family == Family::kMma);
  EXPECT_EQ(refusal(make_problem(dense(DType::kFloat32, 1, 100, 100, 4, 4, 64, 64))), kNoMma + "no float32");
  EXPECT_EQ(refusal(make_problem(dense(DType::kFloat16, 1, 100, 100, 4, 4, 60, 64))),
            kNoMma + "rows of q, k and v at multiples of 16 bytes, head_dim and head_dim_v multiples of 8; no float16");
  AttentionProblem long_keys = make_problem(half);
  long_keys.max_len_k = (INT64_C(1) << 30) + 1;
  EXPECT_EQ(refusal(long_keys), kNoMma + "up to 1073741824 keys; no float16");
  EXPECT_EQ(refusal(make_problem(half), caps_of(75)),
            kNoMma + "no mma code for compute capability 7.5 in this build; no float16");
  // Shared memory, and options that no row has: of a table without the rows that would do.
  AttentionParams options = half;
  options.options.softcap = 1.0f;
  const auto reason = [&](const AttentionParams& p, const DeviceCaps& caps, bool (*keep)(const KernelRow&)) {
    std::vector<KernelRow> some;
    for (const KernelRow& row : kernel_table()) {
      if (row.family == Family::kMma && row.float16 && keep(row)) some.push_back(row);
    }
    return select_attention(some, make_problem(p), caps, Family::kMma).reason;
  };
  EXPECT_EQ(reason(options, h200(), [](const KernelRow& row) { return !row.score_options; }),
            kNoMma + "no softcap, mask or ALiBi, and a positive scale");
  const std::string small =
      reason(half, caps_of(90, 132, 48 * 1024), [](const KernelRow& row) { return row.max_head_dim == 256; });
  EXPECT_EQ(small.rfind(kNoMma + "needs ", 0), 0u) << small;
  EXPECT_NE(small.find(" bytes of shared memory, the device has 49152"), std::string::npos) << small;
}

// Keys are counted in 32 bits.
TEST_F(SelectMmaTest, MoreThanTwoToThe30KeysAreLeftToSimt) {
  constexpr int64_t kLimit = INT64_C(1) << 30;
  for (int64_t seqlen_q : {1, 4, 16, 500}) {
    AttentionProblem p = make_problem(dense(DType::kBFloat16, 2, seqlen_q, kLimit, 16, 2, 128, 128));
    EXPECT_TRUE(chosen(p, h200()).family != Family::kSimt) << chosen(p, h200()).name;
    EXPECT_TRUE(chosen(p, h200(), Family::kMma).family == Family::kMma);
    p.max_len_k = kLimit + 1;
    EXPECT_TRUE(chosen(p, h200()).family == Family::kSimt && chosen(p, h200()).launch != nullptr);
    for (const KernelRow& row : rows()) {
      if (row.takes(DType::kBFloat16) && row.max_head_dim >= 128) {
        EXPECT_EQ(why_not(row, p, h200()), "up to 1073741824 keys") << row.name;
      }
    }
  }
}

}  // namespace
}  // namespace dlattn::cuda
