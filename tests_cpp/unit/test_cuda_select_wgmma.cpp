// Which calls the wgmma rows take, and which they get. Pure functions: no GPU needed.
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "cuda/kernel_table.h"
#include "cuda/launch_plan.h"
#include "cuda/problem.h"
#include "cuda/select.h"
#include "unit/select_calls.h"

namespace dlattn::cuda {
namespace {

constexpr DType kHalves[] = {DType::kFloat16, DType::kBFloat16};

const std::string kAlignment =
    "rows of q, k, v and out at multiples of 16 bytes, head_dim and head_dim_v multiples of 8";
const std::string kOptions = "no softcap, mask or ALiBi, and a positive scale";
const std::string kSoftcapOptions = "no mask or ALiBi, a positive scale, a softcap up to 1000";
const std::string kKeys = "1 to 1073741824 keys";
const std::string kSizes = "sizes of q, k and v from 1 to 2147483647, at most 536870912 queries and 1073741823 tiles";
const std::string kStrides = "strides that TMA can express: not negative, less than 2^40 bytes";

std::string pages_of(int64_t key_tile) {
  return "a page_size whose greatest common divisor with " + std::to_string(key_tile) + " is at least 8";
}

// Contiguous tensors, at an address that is a multiple of 16.
AttentionParams in_memory(DType dtype, int64_t batch, int64_t seqlen_q, int64_t seqlen_k, int64_t heads,
                          int64_t kv_heads, int64_t dim, int64_t dim_v) {
  alignas(16) static char memory[32];
  AttentionParams p = dense(dtype, batch, seqlen_q, seqlen_k, heads, kv_heads, dim, dim_v);
  p.q = p.k = p.v = p.out = memory;
  p.q_stride_head = p.k_stride_head = dim, p.v_stride_head = p.out_stride_head = dim_v;
  p.q_stride_seq = heads * dim, p.out_stride_seq = heads * dim_v;
  p.k_stride_seq = kv_heads * dim, p.v_stride_seq = kv_heads * dim_v;
  p.q_stride_batch = seqlen_q * p.q_stride_seq, p.out_stride_batch = seqlen_q * p.out_stride_seq;
  p.k_stride_batch = seqlen_k * p.k_stride_seq, p.v_stride_batch = seqlen_k * p.v_stride_seq;
  return p;
}

// Two sequences of 1000 queries in a cache of 10000 pages, 100 for each.
PagedAttentionParams paged(int64_t page_size, int64_t dim) {
  PagedAttentionParams p;
  p.device.type = DeviceType::kCUDA, p.dtype = DType::kBFloat16;
  p.batch_size = 2, p.seqlen_q = 1000, p.num_heads = 8, p.num_kv_heads = 2, p.head_dim = p.head_dim_v = dim;
  p.page_size = page_size, p.max_pages = 100, p.num_pages = 10000;
  return p;
}

// The wgmma rows, and a device that has them. Skipped where the build has no code for it.
class SelectWgmmaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!family_runs_on(Family::kWgmma, h200())) GTEST_SKIP() << "this build has no wgmma code";
  }

  static std::vector<KernelRow> rows() { return rows_of(Family::kWgmma); }

  // Whether a wgmma row takes the call.
  static bool takes(const AttentionProblem& problem) {
    return chosen(problem, h200(), Family::kWgmma).launch != nullptr;
  }

  // Every row that takes the dtype and the head sizes lacks this; another family takes the call.
  static void expect_lack(const AttentionProblem& problem, const std::string& reason) {
    int judged = 0;
    for (const KernelRow& row : rows()) {
      if (!row.takes(problem.dtype) || std::max(problem.head_dim, problem.head_dim_v) > row.max_head_dim) continue;
      const bool options = reason == kOptions && row.softcap;
      EXPECT_EQ(why_not(row, problem, h200()), options ? kSoftcapOptions : reason) << row.name;
      ++judged;
    }
    EXPECT_GT(judged, 0);
    const Selection forced = select_attention(kernel_table(), problem, h200(), Family::kWgmma);
    EXPECT_EQ(forced.row, -1);
    EXPECT_EQ(forced.reason.rfind("DLATTN_KERNEL is wgmma: no kernel takes the call: ", 0), 0u) << forced.reason;
    EXPECT_NE(forced.reason.find(reason), std::string::npos) << forced.reason;
    const KernelRow other = chosen(problem, h200());
    EXPECT_TRUE(other.launch != nullptr && other.family != Family::kWgmma) << other.name;
  }
  template <typename Params>
  static void expect_lack(const Params& params, const std::string& reason) {
    expect_lack(make_problem(params), reason);
  }
};

TEST_F(SelectWgmmaTest, TypicalCallsOnAnH200) {
  struct Call {
    int64_t batch, seqlen_q, seqlen_k, heads, kv_heads, dim, dim_v;
    const char* row;  // without dtype
  };
  const Call calls[] = {
      {1, 4096, 4096, 32, 8, 128, 128, "attention_prefill_wgmma_*_hd128"},
      {1, 16384, 16384, 32, 32, 64, 64, "attention_prefill_wgmma_*_hd64"},
      {8, 1500, 1500, 20, 20, 64, 64, "attention_prefill_wgmma_*_hd64"},
      {1, 16384, 16384, 32, 32, 48, 40, "attention_prefill_wgmma_*_hd64"},
      {32, 197, 197, 12, 12, 64, 64, "attention_prefill_wgmma_*_hd64_small"},
      {2, 1024, 1024, 16, 16, 96, 96, "attention_prefill_wgmma_*_hd128"},
      {2, 1024, 1024, 16, 16, 112, 112, "attention_prefill_wgmma_*_hd128"},
      {1, 4096, 4096, 16, 16, 160, 160, "attention_prefill_wgmma_*_hd192"},
      {1, 4096, 4096, 16, 16, 192, 128, "attention_prefill_wgmma_*_hd192"},
      {1, 4096, 4096, 16, 16, 64, 200, "attention_prefill_wgmma_*_hd256"},
      {1, 4096, 4096, 8, 4, 256, 256, "attention_prefill_wgmma_*_hd256"},
      {1, 512, 16384, 32, 8, 128, 128, "attention_prefill_wgmma_*_hd128"},
      {8, 1, 4096, 32, 8, 128, 128, "attention_decode_mma_*_hd128"},
      {8, 4, 4096, 32, 8, 128, 128, "attention_decode_mma_*_hd128"},
  };
  for (DType dtype : kHalves) {
    for (const Call& c : calls) {
      std::string name = c.row;
      name.replace(name.find('*'), 1, dtype == DType::kFloat16 ? "f16" : "bf16");
      AttentionParams p = in_memory(dtype, c.batch, c.seqlen_q, c.seqlen_k, c.heads, c.kv_heads, c.dim, c.dim_v);
      SCOPED_TRACE(testing::Message() << c.batch << " x " << c.seqlen_q << " x " << c.heads << " x " << c.dim);
      EXPECT_EQ(chosen(p, h200()).name, name);
      p.options.is_causal = true;
      EXPECT_EQ(chosen(p, h200()).name, name) << "causal";
      p.q = p.k = p.v = p.out = nullptr;
      EXPECT_EQ(chosen(p, h200()).name, name) << "pointers that come later";
      if (name.find("wgmma") == std::string::npos || name.find("_small") != std::string::npos) continue;
      p.options.softcap = 30.0f;
      EXPECT_EQ(chosen(p, h200()).name, name + "_softcap");
    }
  }
}

// Both tiles of head_dim 64 are measured for the same sizes: docs/kernels/prefill-wgmma.md.
TEST_F(SelectWgmmaTest, ShortCausalCallsTakeTheSmallTile) {
  AttentionParams p = in_memory(DType::kBFloat16, 16, 1024, 1024, 32, 32, 64, 64);
  EXPECT_EQ(chosen(p, h200()).name, std::string("attention_prefill_wgmma_bf16_hd64"));
  p.options.is_causal = true;
  EXPECT_EQ(chosen(p, h200()).name, std::string("attention_prefill_wgmma_bf16_hd64_small"));
  p = in_memory(DType::kBFloat16, 4, 4096, 4096, 32, 32, 64, 64);
  p.options.is_causal = true;
  EXPECT_EQ(chosen(p, h200()).name, std::string("attention_prefill_wgmma_bf16_hd64"));
}

TEST_F(SelectWgmmaTest, RowsSayWhatTheyAre) {
  struct Tile {
    const char* row;  // without dtype
    int rows, keys, blocks;
  };
  const Tile tiles[] = {{"hd64", 192, 128, 1},  {"hd64_softcap", 192, 96, 1}, {"hd64_small", 64, 80, 3},
                        {"hd128", 128, 128, 1}, {"hd192", 128, 112, 1},       {"hd256", 128, 80, 1}};
  EXPECT_EQ(rows().size(), 18u);
  for (const KernelRow& row : rows()) {
    EXPECT_TRUE(row.float16 != row.bfloat16 && !row.float32) << row.name;
    EXPECT_TRUE(row.phase == Phase::kPrefill && row.aligned_only && !row.score_options) << row.name;
    EXPECT_EQ(row.softcap, std::string(row.name).find("_softcap") != std::string::npos) << row.name;
    std::string name = row.name;
    name = name.substr(name.find("_hd") + 1);
    if (row.max_head_dim > 64) name = name.substr(0, name.find("_softcap"));
    const auto* tile = std::find_if(std::begin(tiles), std::end(tiles), [&](const Tile& t) { return name == t.row; });
    ASSERT_NE(tile, std::end(tiles)) << row.name;
    EXPECT_EQ(row.tile_rows, tile->rows) << row.name;
    EXPECT_EQ(row.key_tile, tile->keys) << row.name;
    EXPECT_EQ(row.blocks_per_sm, tile->blocks) << row.name;
    EXPECT_LE(row.shared_bytes, h200().max_shared_bytes) << row.name;
  }
  for (const KernelRow& row : kernel_table()) {
    if (row.family != Family::kWgmma) {
      EXPECT_EQ(row.softcap, row.score_options) << row.name << ": its options are all or none";
    }
  }
}

// A tile of 64 to 192 queries of one head is nearly empty. Up to 16 rows of a kv head are the decode rows' work, up to 128 are a
// tile of the mma prefill, which reads many keys once.
TEST_F(SelectWgmmaTest, FewQueriesAreLeftToOthers) {
  const auto expect_other = [](const AttentionProblem& p) {
    const KernelRow row = chosen(p, h200());
    ASSERT_TRUE(row.family != Family::kWgmma)
        << row.name << " for batch " << p.batch_size << ", " << p.total_q / p.batch_size << " queries, " << p.max_len_k
        << " keys, " << p.num_heads << " heads, " << p.num_kv_heads << " kv heads, head_dim " << p.head_dim;
  };
  for (int64_t dim : {8, 64, 72, 80, 96, 104, 128, 136, 160, 192, 200, 256}) {
    for (int64_t seqlen_q : {1, 2, 4, 8, 16}) {
      for (int64_t heads_per_kv_head : {1, 2, 4, 8, 16}) {
        const int64_t rows = seqlen_q * heads_per_kv_head;
        if (rows > 128) continue;
        for (int64_t batch : {1, 8, 64, 512}) {
          for (int64_t kv_heads : {1, 8, 32}) {
            for (int64_t keys : {1, 16, 130, 1000, 8192, 131072}) {
              if (rows > 16 && (keys < 1000 || dim < 64)) continue;
              const int64_t heads = kv_heads * heads_per_kv_head;
              AttentionParams p = dense(DType::kBFloat16, batch, seqlen_q, keys, heads, kv_heads, dim, dim);
              ASSERT_NO_FATAL_FAILURE(expect_other(make_problem(p)));
              p.options.is_causal = true;
              ASSERT_NO_FATAL_FAILURE(expect_other(make_problem(p)));
              if (rows > 16) continue;
              VarlenAttentionParams varlen;
              varlen.dtype = DType::kFloat16, varlen.batch_size = batch;
              varlen.total_q = batch * seqlen_q, varlen.total_k = batch * keys;
              varlen.num_heads = heads, varlen.num_kv_heads = kv_heads, varlen.head_dim = varlen.head_dim_v = dim;
              ASSERT_NO_FATAL_FAILURE(expect_other(make_problem(varlen)));
            }
          }
        }
      }
    }
  }
}

TEST_F(SelectWgmmaTest, NoOtherDeviceHasThem) {
  const AttentionProblem p = make_problem(in_memory(DType::kFloat16, 1, 4096, 4096, 16, 16, 128, 128));
  for (int capability : {75, 80, 86, 89, 100, 103, 120}) {
    const DeviceCaps caps = caps_of(capability);
    EXPECT_FALSE(family_runs_on(Family::kWgmma, caps));
    EXPECT_TRUE(chosen(p, caps).family != Family::kWgmma) << chosen(p, caps).name;
    for (const KernelRow& row : rows()) {
      if (!row.takes(p.dtype) || row.max_head_dim < 128) continue;
      EXPECT_EQ(why_not(row, p, caps), "no wgmma code for compute capability " + std::to_string(capability / 10) + "." +
                                           std::to_string(capability % 10) + " in this build");
    }
  }
  const DeviceCaps little = caps_of(90, 132, 99 * 1024);  // no device is like that; 59 KiB are hd64_small's
  for (const KernelRow& row : rows()) {
    if (row.takes(p.dtype) && row.max_head_dim >= 128) {
      EXPECT_EQ(why_not(row, p, little),
                "needs " + std::to_string(row.shared_bytes) + " bytes of shared memory, the device has 101376");
    }
  }
}

TEST_F(SelectWgmmaTest, NeitherFloat32NorLargerHeads) {
  for (const KernelRow& row : rows()) {
    EXPECT_EQ(why_not(row, make_problem(dense(DType::kFloat32, 1, 100, 100, 4, 4, 64, 64)), h200()), "no float32");
    const DType dtype = row.float16 ? DType::kFloat16 : DType::kBFloat16;
    if (row.max_head_dim == 256) continue;
    const std::string reason = "head_dim up to " + std::to_string(row.max_head_dim);
    EXPECT_EQ(why_not(row, make_problem(dense(dtype, 1, 100, 100, 4, 4, row.max_head_dim + 8, 64)), h200()), reason);
    EXPECT_EQ(why_not(row, make_problem(dense(dtype, 1, 100, 100, 4, 4, 64, row.max_head_dim + 8)), h200()), reason);
  }
}

TEST_F(SelectWgmmaTest, UnalignedTensorsAreLeftToOthers) {
  for (DType dtype : kHalves) {
    const AttentionParams aligned = in_memory(dtype, 2, 500, 500, 8, 2, 64, 72);
    ASSERT_TRUE(takes(make_problem(aligned)));
    const auto expect = [&](const char* what, auto&& change) {
      SCOPED_TRACE(what);
      AttentionParams p = aligned;
      change(p);
      expect_lack(p, kAlignment);
    };
    const auto past = [](const void* pointer, int bytes) { return static_cast<const char*>(pointer) + bytes; };
    expect("q", [&](AttentionParams& p) { p.q = past(p.q, 2); });
    expect("k", [&](AttentionParams& p) { p.k = past(p.k, 8); });
    expect("v", [&](AttentionParams& p) { p.v = past(p.v, 2); });
    expect("out", [&](AttentionParams& p) { p.out = static_cast<char*>(p.out) + 8; });
    expect("q_stride_batch", [](AttentionParams& p) { p.q_stride_batch += 4; });
    expect("k_stride_seq", [](AttentionParams& p) { p.k_stride_seq += 4; });
    expect("v_stride_head", [](AttentionParams& p) { p.v_stride_head += 1; });
    expect("out_stride_seq", [](AttentionParams& p) { p.out_stride_seq += 4; });
    expect("head_dim", [](AttentionParams& p) { p.head_dim = 60; });
    expect("head_dim_v", [](AttentionParams& p) { p.head_dim_v = 36; });
    AttentionParams one = in_memory(dtype, 1, 500, 500, 1, 1, 64, 72);  // strides of axes of size 1 do not count
    one.q_stride_head = one.k_stride_head = one.v_stride_batch = one.out_stride_batch = -3;
    EXPECT_TRUE(takes(make_problem(one)));
  }
}

TEST_F(SelectWgmmaTest, StridesThatTmaCannotExpress) {
  const AttentionParams fits = in_memory(DType::kBFloat16, 2, 500, 500, 8, 2, 128, 128);
  constexpr int64_t kEnd = INT64_C(1) << 39;  // elements
  int64_t AttentionParams::* const strides[] = {
      &AttentionParams::q_stride_batch,   &AttentionParams::q_stride_seq,   &AttentionParams::q_stride_head,
      &AttentionParams::k_stride_batch,   &AttentionParams::k_stride_seq,   &AttentionParams::k_stride_head,
      &AttentionParams::v_stride_batch,   &AttentionParams::v_stride_seq,   &AttentionParams::v_stride_head,
      &AttentionParams::out_stride_batch, &AttentionParams::out_stride_seq, &AttentionParams::out_stride_head};
  for (int64_t AttentionParams::* stride : strides) {
    AttentionParams p = fits;
    for (int64_t value : {-(fits.*stride), INT64_C(-8), kEnd, 4 * kEnd, INT64_C(1) << 62}) {
      p.*stride = value;
      expect_lack(p, kStrides);
    }
    for (int64_t value : {kEnd - 8, INT64_C(8), INT64_C(0)}) {
      p.*stride = value;
      EXPECT_TRUE(takes(make_problem(p))) << value;
    }
  }
  PagedAttentionParams reversed = paged(16, 128);
  reversed.k_stride_page = -1024;
  expect_lack(reversed, kStrides);
}

TEST_F(SelectWgmmaTest, MaskAndAlibiAreLeftToOthers) {
  static const float slope = 0.5f;
  static const bool keep = true;
  std::vector<AttentionOptions> lacking(5);
  lacking[0].mask.data = &keep, lacking[0].mask.dtype = DType::kBool;
  lacking[1].alibi_slopes.data = &slope;
  lacking[2].scale = 0.0f;
  lacking[3].scale = -0.1f;
  lacking[4].scale = std::numeric_limits<float>::quiet_NaN();
  for (DType dtype : kHalves) {
    AttentionParams p = in_memory(dtype, 1, 4096, 4096, 16, 16, 128, 128);
    for (const AttentionOptions& options : lacking) {
      p.options = options;
      expect_lack(p, kOptions);
      const Selection selection = select_attention(kernel_table(), make_problem(p), h200(), std::nullopt);
      const KernelRow& row = kernel_table()[static_cast<size_t>(selection.row)];
      EXPECT_TRUE(row.family == Family::kMma && row.score_options) << row.name;
      const std::string name =
          std::string("attention_prefill_wgmma_") + (dtype == DType::kFloat16 ? "f16" : "bf16") + "_hd128";
      EXPECT_NE(selection.reason.find("; faster, if it took the call: " + name + " (" + kOptions + ")"),
                std::string::npos)
          << selection.reason;
    }
    static const float sink = 0.0f;
    p.options = AttentionOptions();
    p.options.sinks.data = &sink, p.options.window_left = 100;
    EXPECT_TRUE(chosen(p, h200()).family == Family::kWgmma) << chosen(p, h200()).name;
    EXPECT_EQ(select_attention(kernel_table(), make_problem(p), h200(), std::nullopt).reason.find("faster,"),
              std::string::npos);
  }
}

// The rows for it also take calls without one; the others do not take calls with one.
TEST_F(SelectWgmmaTest, SoftcapHasRowsOfItsOwn) {
  for (DType dtype : kHalves) {
    AttentionParams p = in_memory(dtype, 1, 4096, 4096, 16, 16, 128, 128);
    for (const KernelRow& row : rows()) {
      if (!row.takes(dtype) || row.max_head_dim < 128) continue;
      p.options = AttentionOptions();
      EXPECT_EQ(why_not(row, make_problem(p), h200()), "") << row.name;
      for (float softcap : {0.01f, 0.5f, 30.0f, 50.0f, 1000.0f}) {
        p.options.softcap = softcap;
        EXPECT_EQ(why_not(row, make_problem(p), h200()), row.softcap ? "" : kOptions) << row.name << ", " << softcap;
      }
      for (float softcap : {1000.1f, 1e6f, 1e-39f}) {  // scale / softcap has to be finite, too
        p.options.softcap = softcap;
        EXPECT_EQ(why_not(row, make_problem(p), h200()), row.softcap ? kSoftcapOptions : kOptions)
            << row.name << ", " << softcap;
      }
    }
    p.options.softcap = 1000.1f;
    expect_lack(p, kOptions);
    p.options.softcap = 30.0f, p.options.window_left = 100;
    EXPECT_TRUE(chosen(p, h200()).family == Family::kWgmma && chosen(p, h200()).softcap) << chosen(p, h200()).name;
    static const bool keep = true;
    p.options.mask.data = &keep, p.options.mask.dtype = DType::kBool;
    expect_lack(p, kOptions);
  }
}

TEST_F(SelectWgmmaTest, PagesOfWhichABoxTakesEight) {
  for (int64_t dim : {64, 96, 128, 192, 256}) {
    for (int64_t page_size : {8, 16, 24, 40, 64, 128, 256, 1000}) {
      EXPECT_TRUE(takes(make_problem(paged(page_size, dim)))) << page_size << ", head_dim " << dim;
    }
    for (int64_t page_size : {1, 2, 4, 5, 12, 20, 100, 127}) {  // 20 of 80 keys
      const AttentionProblem p = make_problem(paged(page_size, dim));
      EXPECT_TRUE(dim != 256 || takes(p) == (page_size == 20 || page_size == 100)) << page_size;
      for (const KernelRow& row : rows()) {
        if (row.bfloat16 && row.max_head_dim == dim) {
          const bool fits = std::gcd(page_size, int64_t{row.key_tile}) >= 8;
          EXPECT_EQ(why_not(row, p, h200()), fits ? "" : pages_of(row.key_tile)) << row.name << ", " << page_size;
        }
      }
    }
  }
  expect_lack(paged(4, 256), pages_of(80));
}

TEST_F(SelectWgmmaTest, AtLeastOneKeyAtMostTwoToThe30) {
  constexpr int64_t kLimit = INT64_C(1) << 30;
  EXPECT_TRUE(takes(make_problem(dense(DType::kBFloat16, 2, 500, 1, 16, 2, 128, 128))));
  EXPECT_TRUE(takes(make_problem(dense(DType::kBFloat16, 2, 500, kLimit, 16, 2, 128, 128))));
  expect_lack(dense(DType::kBFloat16, 2, 500, 0, 16, 2, 128, 128), kKeys);
  expect_lack(dense(DType::kBFloat16, 2, 500, kLimit + 1, 16, 2, 128, 128), kKeys);
  PagedAttentionParams p = paged(128, 128);
  p.num_pages = 0;
  expect_lack(p, kKeys);
  p.num_pages = 1, p.max_pages = 0;
  expect_lack(p, kKeys);
  p.max_pages = kLimit / 128;
  EXPECT_TRUE(takes(make_problem(p)));
  p.max_pages += 1;
  expect_lack(p, kKeys);
}

TEST_F(SelectWgmmaTest, SizesAndItemsFit32Bits) {
  constexpr int64_t kSize = INT32_MAX, kQueries = INT64_C(1) << 29, kItems = (INT64_C(1) << 30) - 1;  // the most
  const auto problem = [](int64_t batch, int64_t seqlen_q, int64_t heads, int64_t kv_heads) {
    return make_problem(dense(DType::kBFloat16, batch, seqlen_q, 500, heads, kv_heads, 64, 64));
  };
  EXPECT_TRUE(takes(problem(1, kQueries, 100, 1)));
  expect_lack(problem(1, kQueries + 1, 1, 1), kSizes);
  EXPECT_TRUE(takes(problem(kItems, 1, 1, 1)));
  expect_lack(problem(kItems + 1, 1, 1, 1), kSizes);
  expect_lack(problem(kSize + 1, 1, 1, 1), kSizes);
  expect_lack(problem(1, 1, kItems + 1, 1), kSizes);
  expect_lack(problem(1, 193, kItems / 2 + 1, 1), kSizes);
  for (const KernelRow& row : rows()) {
    if (!row.bfloat16) continue;
    EXPECT_EQ(why_not(row, problem(1, row.tile_rows, kItems, 1), h200()), "") << row.name;
    EXPECT_EQ(why_not(row, problem(1, row.tile_rows + 1, kItems / 2, 1), h200()), "") << row.name;
    EXPECT_EQ(why_not(row, problem(1, row.tile_rows + 1, kItems / 2 + 1, 1), h200()), kSizes) << row.name;
  }
  expect_lack(problem(kSize, kSize, kSize, 1), kSizes);

  VarlenAttentionParams varlen;
  varlen.device.type = DeviceType::kCUDA, varlen.dtype = DType::kFloat16;
  varlen.batch_size = 3, varlen.total_q = kQueries, varlen.total_k = 1000;
  varlen.num_heads = varlen.num_kv_heads = 8, varlen.head_dim = varlen.head_dim_v = 64;
  EXPECT_TRUE(takes(make_problem(varlen)));
  varlen.total_q = kQueries + 1;
  expect_lack(varlen, kSizes);
  varlen.total_q = 1000, varlen.batch_size = kItems / 8 - 5;  // and 5 tiles of 192
  EXPECT_TRUE(takes(make_problem(varlen)));
  varlen.batch_size += 1;
  expect_lack(varlen, kSizes);

  PagedAttentionParams p = paged(128, 64);
  p.num_pages = kSize;
  EXPECT_TRUE(takes(make_problem(p)));
  p.num_pages = kSize + 1;
  expect_lack(p, kSizes);
}

TEST_F(SelectWgmmaTest, RaggedCallsAreTaken) {
  VarlenAttentionParams p;
  p.device.type = DeviceType::kCUDA, p.dtype = DType::kFloat16;
  p.batch_size = 4, p.total_q = p.total_k = 8192, p.num_heads = 32, p.num_kv_heads = 8;
  p.head_dim = p.head_dim_v = 128;
  EXPECT_STREQ(chosen(make_problem(p), h200()).name, "attention_prefill_wgmma_f16_hd128");
  PagedAttentionParams q = paged(16, 128);
  q.seqlen_q = 0, q.total_q = 3000, q.max_pages = 200;
  EXPECT_STREQ(chosen(make_problem(q), h200()).name, "attention_prefill_wgmma_bf16_hd128");
}

// Whether it is aligned turns up with the pointers; then the call may get a row that needs a workspace.
TEST_F(SelectWgmmaTest, AQuestionWithoutPointersCoversEveryRow) {
  const auto bytes = [](const AttentionParams& p) {
    return workspace_size(kernel_table(), make_problem(p), h200(), std::nullopt);
  };
  bool differ = false;
  for (int64_t seqlen_q : {1, 8, 17, 48, 64, 128, 200, 1000}) {
    for (int64_t keys : {100, 700, 3000, 20000, 100000}) {
      for (int64_t batch : {1, 2, 4, 16}) {
        AttentionParams p = in_memory(DType::kFloat16, batch, seqlen_q, keys, 16, 4, 128, 128);
        const AttentionParams given = p;
        p.q = p.k = p.v = p.out = nullptr;
        const size_t enough = bytes(p);
        EXPECT_GE(enough, bytes(given));
        p = given, p.out = static_cast<char*>(p.out) + 8;
        EXPECT_GE(enough, bytes(p)) << chosen(p, h200()).name;
        differ = differ || bytes(p) > bytes(given);
        p = given, p.q = static_cast<const char*>(p.q) + 2;
        EXPECT_GE(enough, bytes(p)) << chosen(p, h200()).name;
        p = given, p.out = nullptr;
        EXPECT_EQ(enough, bytes(p)) << "one null pointer";
      }
    }
  }
  EXPECT_TRUE(differ) << "no call in which an unaligned out needs more than an aligned one";
}

// Tiles are of one query head, not of the heads of a group: so are partial results.
TEST_F(SelectWgmmaTest, HeadsOfAGroupAreNotPacked) {
  for (const KernelRow& row : rows()) {
    const AttentionProblem p = make_problem(dense(DType::kFloat16, 3, row.tile_rows + 1, 500, 32, 4, 64, 64));
    EXPECT_EQ(row_tiles(row, p).num_slots, 2 * 3) << row.name;
    EXPECT_FALSE(splits_keys(row, make_problem(dense(DType::kFloat16, 1, 1, 99999, 1, 1, 64, 64)))) << row.name;
    const AttentionProblem few = make_problem(dense(DType::kFloat16, 1, 1, 99999, 8, 1, 64, 40));
    constexpr size_t kParts = 132 / 8;  // one wave
    EXPECT_EQ(split_plan(row, few, row_tiles(row, few), h200()).max_splits, int64_t{kParts}) << row.name;
    const auto rows_of_tile = static_cast<size_t>(row.tile_rows);
    EXPECT_EQ(workspace_size(row, few, h200()), kParts * 8 * rows_of_tile * (40 + 2) * sizeof(float)) << row.name;
  }
}

// A counter, where items are more than the thread blocks that are there at once; then no keys are split.
TEST_F(SelectWgmmaTest, WorkspaceOfTheCounter) {
  constexpr size_t kCounter = WorkOrderWgmma::kCounterBytes;
  for (const KernelRow& row : rows()) {
    SCOPED_TRACE(row.name);
    const auto bytes = [&](const AttentionProblem& problem) { return workspace_size(row, problem, h200()); };
    const int64_t blocks = row.blocks_per_sm;
    AttentionParams p = dense(DType::kFloat16, blocks, row.tile_rows * 12, 100000, 11, 11, 64, 64);
    for (bool causal : {false, true}) {
      p.options.is_causal = causal;
      p.seqlen_q = row.tile_rows * 12;
      EXPECT_EQ(bytes(make_problem(p)), 0u) << "as many";
      p.seqlen_q += 1;
      EXPECT_EQ(bytes(make_problem(p)), kCounter);
    }
    p.options.window_left = 10;
    EXPECT_EQ(bytes(make_problem(p)), kCounter);

    VarlenAttentionParams varlen;
    varlen.dtype = DType::kFloat16, varlen.batch_size = 6, varlen.total_q = 7 * row.tile_rows + 50,
    varlen.total_k = 3000;
    varlen.num_heads = varlen.num_kv_heads = 11 * blocks, varlen.head_dim = varlen.head_dim_v = 64;  // 13 slots
    EXPECT_EQ(bytes(make_problem(varlen)), kCounter);
    varlen.batch_size = 5;
    EXPECT_EQ(bytes(make_problem(varlen)), 0u);

    PagedAttentionParams pages = paged(16, 64);
    pages.seqlen_q = 8 * blocks * row.tile_rows - 7;  // 16 tiles of 8 heads for each block of an SM
    EXPECT_EQ(bytes(make_problem(pages)), 0u);
    pages.num_heads = 10;
    EXPECT_EQ(bytes(make_problem(pages)), kCounter);
  }
}

}  // namespace
}  // namespace dlattn::cuda
