// Which compiled code runs where, and which kernel a call gets. Pure functions: no GPU needed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
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
#include "ops/small_cases.h"
#include "support/message.h"

namespace dlattn::cuda {
namespace {

DeviceCaps caps_of(int capability, int sms = 132, int shared_bytes = 227 * 1024) {
  return {capability / 10, capability % 10, sms, shared_bytes};
}

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

AttentionParams dense(DType dtype, int64_t batch, int64_t seqlen_q, int64_t seqlen_k, int64_t heads, int64_t kv_heads,
                      int64_t dim, int64_t dim_v) {
  AttentionParams p;
  p.device.type = DeviceType::kCUDA, p.dtype = dtype;
  p.batch_size = batch, p.seqlen_q = seqlen_q, p.seqlen_k = seqlen_k;
  p.num_heads = heads, p.num_kv_heads = kv_heads, p.head_dim = dim, p.head_dim_v = dim_v;
  return p;
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

// Those that the sanitizers run.
TEST(SelectTest, SmallCasesReachEveryRow) {
  std::vector<AttentionProblem> problems;
  add_problems<test::DenseProblem>(&problems, test::small_dense_cases());
  add_problems<test::VarlenProblem>(&problems, test::small_varlen_cases());
  add_problems<test::PagedProblem>(&problems, test::small_paged_cases());
  for (const DeviceCaps& caps : devices_of_this_build()) {
    for (const KernelRow& row : kernel_table()) {
      if (!family_runs_on(row.family, caps) || row.shared_bytes > caps.max_shared_bytes) continue;
      for (DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
        if (!row.takes(dtype)) continue;
        EXPECT_TRUE(
            std::any_of(problems.begin(), problems.end(),
                        [&](const AttentionProblem& p) { return p.dtype == dtype && why_not(row, p, caps).empty(); }))
            << row.name << ": no case reaches it with " << test::dtype_name(dtype);
      }
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

// The one-row kernels are about a third faster on one row, the four-row kernels read keys once for a group.
TEST(SelectTest, OneRowIsDecodedByItsOwnKernel) {
  DeviceCaps h200;
  h200.major = 9, h200.num_sms = 132, h200.max_shared_bytes = 227 * 1024;
  if (!family_runs_on(Family::kSimt, h200)) GTEST_SKIP() << "this build has no code for compute capability 9.0";
  const auto name = [&](int64_t num_heads, DType dtype) {
    const AttentionParams p = dense(dtype, 8, 1, 2048, num_heads, 32, 128, 128);
    return std::string(kernel_table()[static_cast<size_t>(select_row(kernel_table(), make_problem(p), h200, {}))].name);
  };
  EXPECT_EQ(name(32, DType::kBFloat16), "attention_decode_simt_bf16_hd128_rows1");
  EXPECT_EQ(name(32, DType::kFloat16), "attention_decode_simt_f16_hd128_rows1");
  EXPECT_EQ(name(32, DType::kFloat32), "attention_decode_simt_f32_hd128_rows1");
  EXPECT_EQ(name(128, DType::kBFloat16), "attention_decode_simt_bf16_hd128_rows4");
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

TEST(SelectTest, WorkspaceIsForDecodesThatAreSplit) {
  for (const DeviceCaps& caps : devices_of_this_build()) {
    for (const KernelRow& row : kernel_table()) {
      const auto bytes = [&](int64_t batch, int64_t keys) {
        return workspace_size(row, make_problem(dense(DType::kFloat32, batch, 1, keys, 8, 8, 64, 64)), caps);
      };
      EXPECT_EQ(bytes(0, 100000), 0u) << row.name;
      EXPECT_EQ(bytes(1, 100), 0u) << row.name << ": too few keys for two parts";
      EXPECT_LE(bytes(70000, 100000), size_t{1} << 30) << row.name;
      if (row.phase == Phase::kPrefill) {
        EXPECT_EQ(bytes(1, 100000), 0u) << row.name;
      } else {  // at least two parts of 8 heads: 64 sums, a maximum and a denominator each
        EXPECT_GE(bytes(1, 100000), 2 * 8 * 66 * sizeof(float)) << row.name;
        EXPECT_LE(bytes(1, 100000), size_t{1} << 30) << row.name;
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
    if (row.phase != Phase::kDecode) continue;
    AttentionParams p = dense(DType::kFloat32, 1, 1, 100000, 8, 8, 64, 64);
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
