// Which compiled code runs where, and which kernel a call gets. Pure functions: no GPU needed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <optional>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda/archs.h"
#include "cuda/kernel_table.h"
#include "cuda/launch_plan.h"
#include "cuda/problem.h"
#include "cuda/select.h"
#include "cuda_archs.h"
#include "ops/attention_problem.h"
#include "ops/score_cases.h"
#include "ops/small_cases.h"
#include "support/message.h"
#include "unit/select_calls.h"

namespace dlattn::cuda {
namespace {

TEST(ArchsTest, WhichDevicesRunWhichCode) {
  struct Row {
    ArchTarget target;
    const char* name;
    std::vector<int> devices;
  };
  const int all[] = {75, 80, 86, 89, 90, 100, 103, 120, 121};
  const Row rows[] = {
      {{75, 0, true, false}, "75-real", {75}},
      {{80, 0, true, false}, "80-real", {80, 86, 89}},
      {{86, 0, true, false}, "86-real", {86, 89}},
      {{80, 0, true, true}, "80", {80, 86, 89, 90, 100, 103, 120, 121}},
      {{90, 0, false, true}, "90-virtual", {90, 100, 103, 120, 121}},
      {{90, 'a', true, false}, "90a-real", {90}},
      {{90, 'a', true, true}, "90a", {90}},
      {{100, 'f', true, false}, "100f-real", {100, 103}},
      {{120, 'f', true, true}, "120f", {120, 121}},
      {{120, 0, true, false}, "120-real", {120, 121}},
  };
  for (const Row& row : rows) {
    EXPECT_EQ(to_string(row.target), row.name);
    for (int capability : all) {
      const bool expected = std::count(row.devices.begin(), row.devices.end(), capability) > 0;
      EXPECT_EQ(runs_on(row.target, caps_of(capability)), expected) << row.name << " on " << capability;
    }
  }
}

// Devices that this build has code for, small and large, with as little shared memory as there is. Never empty.
std::vector<DeviceCaps> devices_of_this_build() {
  std::set<int> capabilities{75, 80, 86, 89, 90, 100, 103, 120, 121};
  for (const ArchTarget& target : kSimtArchs) capabilities.insert(target.capability);
  std::vector<DeviceCaps> devices;
  for (int capability : capabilities) {
    for (const DeviceCaps& caps : {caps_of(capability), caps_of(capability, 20, 64 * 1024)}) {
      if (family_runs_on(Family::kSimt, caps)) devices.push_back(caps);
    }
  }
  if (devices.empty()) throw std::logic_error("this build has code for no device");
  return devices;
}

template <typename Problem, typename Case>
void add_problems(std::vector<AttentionProblem>* to, const std::vector<Case>& cases) {
  for (const Case& c : cases) {
    Problem problem(c);
    to->push_back(make_problem(problem.params()));  // its pointers dangle: only their alignment counts
  }
}

const std::vector<AttentionProblem>& small_problems() {
  static const std::vector<AttentionProblem> problems = [] {
    std::vector<AttentionProblem> all;
    add_problems<test::DenseProblem>(&all, test::small_dense_cases());
    for (const test::ScoreCase& c : test::small_score_cases()) {
      test::DenseProblem problem = test::score_problem(c);
      all.push_back(make_problem(problem.params()));
    }
    add_problems<test::VarlenProblem>(&all, test::small_varlen_cases());
    add_problems<test::PagedProblem>(&all, test::small_paged_cases());
    return all;
  }();
  return problems;
}

// Whether a small case that the row takes has `property(problem)`.
template <typename Property>
bool some_small_case(const KernelRow& row, const DeviceCaps& caps, Property&& property) {
  return std::any_of(small_problems().begin(), small_problems().end(),
                     [&](const AttentionProblem& p) { return why_not(row, p, caps).empty() && property(p); });
}

bool cuts_keys(const KernelRow& row, const AttentionProblem& p, const DeviceCaps& caps) {
  return split_plan(row, p, row_tiles(row, p), caps).max_splits > 1;
}

// Those that the sanitizers run.
TEST(SelectTest, SmallCasesReachEveryRow) {
  for (const DeviceCaps& caps : devices_of_this_build()) {
    for (const KernelRow& row : kernel_table()) {
      if (!family_runs_on(row.family, caps) || row.shared_bytes > caps.max_shared_bytes) continue;
      for (DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
        if (!row.takes(dtype)) continue;
        EXPECT_TRUE(some_small_case(row, caps, [&](const AttentionProblem& p) { return p.dtype == dtype; }))
            << row.name << ": no case reaches it with " << test::dtype_name(dtype);
      }
      if (row.family == Family::kSimt) continue;
      EXPECT_TRUE(some_small_case(row, caps,
                                  [&](const AttentionProblem& p) {
                                    return p.head_dim == row.max_head_dim && p.head_dim_v == row.max_head_dim;
                                  }))
          << row.name << ": no case has its head size";
      if (row.family == Family::kWgmma) {
        EXPECT_TRUE(some_small_case(
            row, caps,
            [&](const AttentionProblem& p) { return p.max_len_q > row.tile_rows && p.max_len_k > 2 * row.key_tile; }))
            << row.name << ": no case has several tiles";
        EXPECT_TRUE(some_small_case(
            row, caps,
            [&](const AttentionProblem& p) { return !p.paged && !p.ragged_k && (p.softcap > 0.0f) == row.softcap; }))
            << row.name << ": no dense case has " << (row.softcap ? "a softcap" : "none");
        EXPECT_TRUE(some_small_case(row, caps,
                                    [&](const AttentionProblem& p) { return p.paged && p.max_len_q > row.tile_rows; }))
            << row.name << ": no case has pages";
        EXPECT_TRUE(some_small_case(
            row, caps, [&](const AttentionProblem& p) { return p.ragged_k && p.max_len_q > row.tile_rows; }))
            << row.name << ": no case has ragged keys";
        EXPECT_TRUE(some_small_case(row, caps, [&](const AttentionProblem& p) { return cuts_keys(row, p, caps); }))
            << row.name << ": no case has its keys split";
        continue;
      }
      EXPECT_TRUE(!row.score_options || some_small_case(row, caps,
                                                        [](const AttentionProblem& p) {
                                                          return p.softcap > 0.0f && p.mask.data != nullptr &&
                                                                 p.alibi_slopes.data != nullptr;
                                                        }))
          << row.name << ": no case has its options";
      EXPECT_TRUE(some_small_case(row, caps, [&](const AttentionProblem& p) { return cuts_keys(row, p, caps); }))
          << row.name << ": no case has its keys split";
    }
  }
}

TEST(SelectTest, EveryLegalCallGetsARow) {
  const std::vector<DeviceCaps> devices = devices_of_this_build();
  const std::vector<KernelRow>& table = kernel_table();
  ASSERT_FALSE(table.empty());
  std::mt19937 random(6);
  const DType dtypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};
  const int64_t lengths[] = {0, 1, 2, 16, 17, 300, 4096, 100000};
  for (int round = 0; round < 20000; ++round) {
    const int64_t kv_heads = 1 + random() % 9, heads_per_kv_head = 1 + random() % 16;
    AttentionParams p = dense(dtypes[random() % 3], 1 + random() % 5, lengths[random() % 8], lengths[random() % 8],
                              kv_heads * heads_per_kv_head, kv_heads, 1 + random() % 256, 1 + random() % 256);
    p.options.is_causal = random() % 2 == 0;
    if (random() % 3 == 0) p.options.window_left = random() % 500;
    if (random() % 3 == 0) p.options.softcap = 2.0f;
    static const float sink = 0.0f;
    if (random() % 3 == 0) p.options.sinks.data = &sink;
    const AttentionProblem problem = make_problem(p);
    for (const DeviceCaps& caps : devices) {
      const Selection selection = select_attention(table, problem, caps, std::nullopt);
      ASSERT_GE(selection.row, 0) << selection.reason << "; head_dim " << p.head_dim << ", " << p.head_dim_v;
      ASSERT_LT(selection.row, static_cast<int>(table.size()));
      ASSERT_FALSE(selection.reason.empty());
      ASSERT_EQ(select_row(table, problem, caps, std::nullopt), selection.row);
      const KernelRow& row = table[static_cast<size_t>(selection.row)];
      ASSERT_EQ(why_not(row, problem, caps), "");
      ASSERT_TRUE(row.takes(p.dtype));
      ASSERT_LE(std::max(p.head_dim, p.head_dim_v), row.max_head_dim);
      ASSERT_LE(row.shared_bytes, caps.max_shared_bytes);
      const Selection simt = select_attention(table, problem, caps, Family::kSimt);
      ASSERT_GE(simt.row, 0) << "simt is the safety net: " << simt.reason;
      ASSERT_TRUE(table[static_cast<size_t>(simt.row)].family == Family::kSimt);
    }
  }
}

TEST(SelectTest, FewQueriesAreDecodedAndManyPrefilled) {
  const std::vector<KernelRow>& table = kernel_table();
  const auto phase = [&](const AttentionParams& p) {
    const Selection selection = select_attention(table, make_problem(p), devices_of_this_build()[0], std::nullopt);
    return selection.row < 0 ? Phase::kPrefill : table[static_cast<size_t>(selection.row)].phase;
  };
  for (DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    EXPECT_TRUE(phase(dense(dtype, 1, 1, 8192, 32, 8, 128, 128)) == Phase::kDecode);
    EXPECT_TRUE(phase(dense(dtype, 8, 1, 2048, 32, 32, 128, 128)) == Phase::kDecode);
    EXPECT_TRUE(phase(dense(dtype, 1, 4096, 4096, 16, 16, 128, 128)) == Phase::kPrefill);
  }
}

// Of one row, and of all rows of a group, which read the keys once.
TEST(SelectTest, OneRowIsDecodedByItsOwnKernel) {
  if (!family_runs_on(Family::kSimt, h200())) GTEST_SKIP() << "this build has no code for compute capability 9.0";
  const auto name = [&](int64_t num_heads, DType dtype, std::optional<Family> forced = std::nullopt) {
    return std::string(chosen(dense(dtype, 8, 1, 2048, num_heads, 32, 128, 128), h200(), forced).name);
  };
  EXPECT_EQ(name(32, DType::kBFloat16, Family::kSimt), "attention_decode_simt_bf16_hd128_rows1");
  EXPECT_EQ(name(32, DType::kFloat16, Family::kSimt), "attention_decode_simt_f16_hd128_rows1");
  EXPECT_EQ(name(32, DType::kFloat32), "attention_decode_simt_f32_hd128_rows1");
  EXPECT_EQ(name(128, DType::kFloat32), "attention_decode_simt_f32_hd128_rows4");
  EXPECT_EQ(name(128, DType::kBFloat16, Family::kSimt), "attention_decode_simt_bf16_hd128_rows4");
  if (!family_runs_on(Family::kMma, h200())) GTEST_SKIP() << "this build has no mma code for compute capability 9.0";
  for (int64_t num_heads : {32, 128}) {  // of one row a tie, in which mma is faster: 66 us instead of 70
    EXPECT_EQ(name(num_heads, DType::kBFloat16), "attention_decode_mma_bf16_hd128");
    EXPECT_EQ(name(num_heads, DType::kFloat16), "attention_decode_mma_f16_hd128");
  }
}

// cp.async and mma.m16n8k16 begin with 8.0.
TEST(SelectTest, ATuringGpuHasNoMma) {
  const DeviceCaps turing = caps_of(75, 40, 64 * 1024);
  EXPECT_FALSE(family_runs_on(Family::kMma, turing));
  for (const KernelRow& row : kernel_table()) {
    if (row.family != Family::kMma) continue;
    for (DType dtype : {DType::kFloat16, DType::kBFloat16}) {
      const std::string why = why_not(row, make_problem(dense(dtype, 1, 8, 100, 8, 2, 32, 32)), turing);
      EXPECT_FALSE(why.empty()) << row.name;
    }
  }
  for (int64_t seqlen_q : {1, 16, 500}) {
    const KernelRow row = chosen(dense(DType::kFloat16, 1, seqlen_q, 500, 8, 2, 64, 64), turing);
    EXPECT_TRUE(row.family == Family::kSimt) << row.name;
    EXPECT_EQ(row.launch != nullptr, family_runs_on(Family::kSimt, turing)) << row.name;
  }
}

// 99 KiB: sm_86, sm_89 and sm_120. Whatever has no tile of the tensor cores there is computed without them.
TEST(SelectTest, LittleSharedMemoryStillHasARowForAll) {
  for (DeviceCaps caps : devices_of_this_build()) {
    caps.num_sms = 84, caps.max_shared_bytes = 99 * 1024;
    for (DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
      for (int64_t dim = 1; dim <= 256; ++dim) {
        for (int64_t seqlen_q : {1, 16, 1000}) {
          AttentionParams p = dense(dtype, 2, seqlen_q, 1000, 8, 2, dim, 257 - dim);
          for (float softcap : {0.0f, 1.0f}) {
            p.options.softcap = softcap;
            const KernelRow row = chosen(p, caps);
            ASSERT_NE(row.launch, nullptr) << dim << ", " << softcap;
            ASSERT_EQ(why_not(row, make_problem(p), caps), "") << row.name;
            ASSERT_LE(row.shared_bytes, caps.max_shared_bytes) << row.name;
          }
        }
      }
    }
    if (!family_runs_on(Family::kMma, caps)) continue;
    for (int64_t dim : {64, 80, 96, 128}) {
      const KernelRow row = chosen(dense(DType::kFloat16, 2, 4000, 4000, 8, 8, dim, dim), caps);
      EXPECT_TRUE(row.family != Family::kSimt) << row.name << " for head_dim " << dim;
    }
  }
}

// A large tile is no good where an SM holds fewer of its thread blocks than it was measured with.
TEST(SelectTest, TheTileFitsTheSharedMemory) {
  const auto name = [](int64_t head_dim, int shared_bytes) {
    const AttentionParams p = dense(DType::kFloat32, 1, 4096, 4096, 16, 16, head_dim, head_dim);
    const DeviceCaps caps = caps_of(90, 132, shared_bytes);
    const int row = select_row(kernel_table(), make_problem(p), caps, Family::kSimt);
    return row < 0 ? std::string("none") : std::string(kernel_table()[static_cast<size_t>(row)].name);
  };
  if (!family_runs_on(Family::kSimt, caps_of(90))) GTEST_SKIP() << "this build has no code for compute capability 9.0";
  for (const int64_t head_dim : {64, 128, 256}) {
    const std::string large = "attention_prefill_simt_f32_hd" + std::to_string(head_dim);
    EXPECT_EQ(name(head_dim, 227 * 1024), large);             // an H100's shared memory
    EXPECT_EQ(name(head_dim, 163 * 1024), large + "_small");  // an A100's: one block of two, or none
    EXPECT_EQ(name(head_dim, 64 * 1024), large + "_small");   // the least
  }
}

TEST(SelectTest, TheSameCallGetsTheSameRowWithAndWithoutMemory) {
  AttentionParams p = dense(DType::kBFloat16, 2, 1, 900, 8, 2, 128, 128);
  const DeviceCaps caps = devices_of_this_build()[0];
  const int row = select_attention(kernel_table(), make_problem(p), caps, std::nullopt).row;
  alignas(16) static char memory[16];
  p.q = p.k = p.v = p.out = memory;
  EXPECT_EQ(select_attention(kernel_table(), make_problem(p), caps, std::nullopt).row, row);
}

TEST(SelectTest, AFamilyThatIsNotThereHasAReason) {
  const AttentionProblem problem = make_problem(dense(DType::kFloat32, 1, 1, 1, 1, 1, 8, 8));
  const std::vector<KernelRow>& table = kernel_table();
  for (Family family : {Family::kSimt, Family::kMma, Family::kWgmma}) {
    const Selection selection = select_attention(table, problem, devices_of_this_build()[0], family);
    EXPECT_FALSE(selection.reason.empty());
    if (selection.row >= 0) {
      EXPECT_TRUE(table[static_cast<size_t>(selection.row)].family == family);
      EXPECT_NE(selection.reason.find("DLATTN_KERNEL"), std::string::npos) << selection.reason;
    }
  }
  const DeviceCaps old = {3, 5, 15, 48 * 1024};  // no CUDA of today has code for it
  const Selection none = select_attention(table, problem, old, std::nullopt);
  EXPECT_EQ(none.row, -1);
  EXPECT_NE(none.reason.find("3.5"), std::string::npos) << none.reason;
  const Selection empty = select_attention({}, problem, old, Family::kWgmma);
  EXPECT_EQ(empty.row, -1);
  EXPECT_NE(empty.reason.find("wgmma"), std::string::npos) << empty.reason;
}

TEST(SelectTest, NamesOfRowsAreUniqueAndSayTheFamily) {
  std::vector<std::string> names;
  for (const KernelRow& row : kernel_table()) {
    names.push_back(row.name);
    EXPECT_NE(names.back().find(name_of(row.family)), std::string::npos) << row.name;
    EXPECT_TRUE(row.float32 || row.float16 || row.bfloat16) << row.name;
    EXPECT_NE(row.launch, nullptr) << row.name;
  }
  std::sort(names.begin(), names.end());
  EXPECT_TRUE(std::adjacent_find(names.begin(), names.end()) == names.end());
}

TEST(SelectTest, WorkspaceIsForKeysThatAreSplit) {
  for (const DeviceCaps& caps : devices_of_this_build()) {
    for (const KernelRow& row : kernel_table()) {
      const auto bytes = [&](int64_t batch, int64_t keys, int64_t queries = 1) {
        return workspace_size(row, make_problem(dense(DType::kFloat32, batch, queries, keys, 8, 8, 64, 64)), caps);
      };
      EXPECT_EQ(bytes(0, 100000), 0u) << row.name;
      EXPECT_EQ(bytes(1, 100), 0u) << row.name << ": too few keys for two parts";
      EXPECT_LE(bytes(70000, 100000), size_t{1} << 30) << row.name;
      if (row.phase == Phase::kPrefill && row.family == Family::kSimt) {
        EXPECT_EQ(bytes(1, 100000), 0u) << row.name;
        continue;
      }
      // At least two parts of 8 heads: 64 sums, a maximum and a denominator for each row of a tile.
      const size_t tile_rows = static_cast<size_t>(row.tile_rows);
      EXPECT_GE(bytes(1, 100000), 2 * 8 * tile_rows * 66 * sizeof(float)) << row.name;
      EXPECT_LE(bytes(1, 100000), size_t{1} << 30) << row.name;
      if (row.phase == Phase::kPrefill) {
        EXPECT_GE(bytes(1, 100000, row.tile_rows), 2 * 8 * tile_rows * 66 * sizeof(float)) << row.name;
        // The mma prefill cuts the keys of one tile only, the wgmma one where it leaves SMs without work.
        const int64_t most_tiles = row.family == Family::kWgmma ? caps.num_sms / 2 / 8 : 1;
        EXPECT_GT(bytes(1, 100000, row.tile_rows * most_tiles), 0u) << row.name;
        EXPECT_EQ(bytes(1, 100000, row.tile_rows * most_tiles + 1), 0u) << row.name;
      }
    }
  }
}

TEST(SelectTest, WorkspaceOfRaggedCallsNeedsNoArrays) {
  const DeviceCaps caps = devices_of_this_build()[0];
  VarlenAttentionParams varlen;
  varlen.device.type = DeviceType::kCUDA;
  varlen.batch_size = 3, varlen.total_q = 3, varlen.total_k = 100000;
  varlen.num_heads = varlen.num_kv_heads = 8, varlen.head_dim = varlen.head_dim_v = 64;
  PagedAttentionParams paged;
  paged.device.type = DeviceType::kCUDA;
  paged.batch_size = 3, paged.total_q = 3, paged.page_size = 16, paged.max_pages = 6000, paged.num_pages = 18000;
  paged.num_heads = paged.num_kv_heads = 8, paged.head_dim = paged.head_dim_v = 64;
  static const int32_t lengths[4] = {};
  const auto expect_same = [&](const AttentionProblem& without, const AttentionProblem& with) {
    EXPECT_EQ(select_row(kernel_table(), without, caps, std::nullopt),
              select_row(kernel_table(), with, caps, std::nullopt));
    for (const KernelRow& row : kernel_table()) {
      EXPECT_EQ(workspace_size(row, without, caps), workspace_size(row, with, caps)) << row.name;
    }
  };
  VarlenAttentionParams varlen_with = varlen;
  varlen_with.cu_seqlens_q.data = varlen_with.cu_seqlens_k.data = lengths;
  expect_same(make_problem(varlen), make_problem(varlen_with));
  PagedAttentionParams paged_with = paged;
  paged_with.cu_seqlens_q.data = paged_with.seqlens_k.data = paged_with.page_table.data = lengths;
  expect_same(make_problem(paged), make_problem(paged_with));
}

// A window bounds the keys of a tile, and with them the parts. Each tile's visible keys are within that bound.
TEST(SelectTest, WindowsNeedLessWorkspace) {
  const DeviceCaps caps = devices_of_this_build()[0];
  for (const KernelRow& row : kernel_table()) {
    AttentionParams p = dense(DType::kFloat32, 1, 1, 100000, 8, 8, 64, 64);
    if (!splits_keys(row, make_problem(p))) continue;
    const size_t all = workspace_size(row, make_problem(p), caps);
    p.options.is_causal = true, p.options.window_left = 255;
    EXPECT_LT(workspace_size(row, make_problem(p), caps), all) << row.name;
    for (int64_t heads_per_kv_head : {1, 2, 3, 4, 5}) {
      for (int64_t window : {0, 1, 255, 1000}) {
        p = dense(DType::kFloat32, 1, 16, 5000, heads_per_kv_head, 1, 64, 64);
        p.options.window_left = window, p.options.window_right = window / 2;
        const AttentionProblem problem = make_problem(p);
        const RowTiles tiles = row_tiles(row, problem);
        const SplitPlan plan = split_plan(row, problem, tiles, caps);
        for (int64_t slot = 0; slot < tiles.num_slots; ++slot) {
          const int64_t first = tiles.find(slot).first_row;
          const int64_t end = std::min(first + row.tile_rows, 16 * heads_per_kv_head);
          const int64_t queries = (end - 1) / heads_per_kv_head - first / heads_per_kv_head + 1;
          EXPECT_LE(plan.num_splits(window + window / 2 + queries), plan.max_splits) << row.name << ", " << window;
        }
      }
    }
  }
}

// DLATTN_KERNEL for as long as this lives.
class Variable {
 public:
  explicit Variable(const char* value) {
    const char* before = std::getenv(kName);
    if (before != nullptr) before_ = before;
    value != nullptr ? setenv(kName, value, 1) : unsetenv(kName);
  }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;
  ~Variable() { before_ ? setenv(kName, before_->c_str(), 1) : unsetenv(kName); }

 private:
  static constexpr const char* kName = "DLATTN_KERNEL";
  std::optional<std::string> before_;
};

TEST(ForcedFamilyTest, IsWhatTheVariableNames) {
  const auto forced = [](const char* value) {
    const Variable variable(value);
    return forced_family();
  };
  EXPECT_FALSE(forced(nullptr).has_value());
  EXPECT_FALSE(forced("").has_value());
  EXPECT_TRUE(forced("simt") == Family::kSimt);
  EXPECT_TRUE(forced("mma") == Family::kMma);
  EXPECT_TRUE(forced("wgmma") == Family::kWgmma);
  EXPECT_EQ(test::invalid_argument([&] { forced("SIMT"); }), "DLATTN_KERNEL is \"SIMT\", expected simt, mma or wgmma");
}

}  // namespace
}  // namespace dlattn::cuda
