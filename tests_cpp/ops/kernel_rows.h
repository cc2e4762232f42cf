// Attention forced onto every row of the kernel table that can run a problem, against the CPU backend in float32. A row that
// this device can run but that no problem reached fails the run.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cuda/device.h"
#include "cuda/kernel_table.h"
#include "cuda/select.h"
#include "ops/on_device.h"
#include "support/compare.h"

namespace dlattn::test {

// Why the device can never run the row; empty: it can.
inline std::string why_device_cannot_run(const cuda::KernelRow& row) {
  const cuda::DeviceCaps& caps = cuda::device_caps(0);
  if (!cuda::family_runs_on(row.family, caps)) {
    return std::string(row.name) + ": no " + cuda::name_of(row.family) + " code for this device in this build";
  }
  if (row.shared_bytes > caps.max_shared_bytes) {
    return std::string(row.name) + ": needs " + std::to_string(row.shared_bytes) +
           " bytes of shared memory, there are " + std::to_string(caps.max_shared_bytes);
  }
  return "";
}

// How often each row ran, by dtype.
inline std::map<std::pair<int, DType>, int64_t>& row_calls() {
  static std::map<std::pair<int, DType>, int64_t> calls;
  return calls;
}

// Judges at the end, if every test of the executable was to run.
class EveryRowIsReached : public ::testing::Environment {
 public:
  void TearDown() override {
    const auto& run = *::testing::UnitTest::GetInstance();
    if (run.test_to_run_count() != run.total_test_count() || !why_no_device().empty()) return;
    const std::vector<cuda::KernelRow>& table = cuda::kernel_table();
    for (size_t i = 0; i < table.size(); ++i) {
      if (!why_device_cannot_run(table[i]).empty()) continue;
      for (DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
        if (!table[i].takes(dtype) || row_calls().count({static_cast<int>(i), dtype}) > 0) continue;
        ADD_FAILURE() << table[i].name << ": no case reached it with " << dtype_name(dtype);
      }
    }
  }
};

// One row on one problem, whose outputs hold the result afterwards.
template <typename Problem, typename Params>
void run_row_on_device(Problem& problem, DeviceTensors& device, const DeviceStream& stream, int row, Params params,
                       Bits bits = Bits::kSame) {
  Workspace workspace(cuda::row_workspace_size(row, params), stream);
  params.workspace = workspace.data(), params.workspace_bytes = workspace.bytes();
  const auto launch = [&](int attempt) {
    const int garbage[] = {0xFF, 0x00, 0x7F};  // NaN, zeros, large numbers
    workspace.poison(garbage[attempt]);
    cuda::run_row(row, params, stream);
  };
  run_on_device(problem, device, stream, launch, bits);
  workspace.expect_guards_untouched();
  ++row_calls()[{row, params.dtype}];
}

// The rows that can run the call; fails if there are none.
template <typename Params>
std::vector<int> rows_for(const Params& params) {
  std::vector<int> rows;
  for (int row = 0; row < static_cast<int>(cuda::kernel_table().size()); ++row) {
    if (cuda::why_not(row, params).empty()) rows.push_back(row);
  }
  EXPECT_FALSE(rows.empty()) << "no kernel takes this call";
  return rows;
}

// The same problem in float32, in which the CPU backend gives what is expected.
template <typename Problem>
Problem as_float32(Problem problem) {
  for (Tensor* t : problem.tensors()) *t = t->as_float32();
  problem.c.dtype = DType::kFloat32;
  problem.clean_out = problem.out.bytes();
  return problem;
}

template <typename Problem>
void expect_result(Problem& problem, Problem& oracle) {
  const DType dtype = problem.c.dtype;
  const auto params = oracle.params();
  expect_near("out", problem.out, oracle.out, kernel_bound(dtype, params.options.scale, params.head_dim));
  expect_near("lse", problem.lse, oracle.lse, lse_bound(dtype));
  problem.out.expect_gaps_untouched("out");
  problem.lse.expect_gaps_untouched("lse");
}

// Every row, then the public call, which must have chosen one of them.
template <typename Problem>
void expect_every_row(Problem& problem, const DeviceStream& stream) {
  Problem oracle = as_float32(problem);
  oracle.run(oracle.params());

  DeviceTensors device(problem.tensors(), stream);
  auto params = device.on_device(problem.params());
  bool chosen = false;
  for (int row : rows_for(params)) {
    const char* name = cuda::kernel_table()[static_cast<size_t>(row)].name;
    SCOPED_TRACE(name);
    run_row_on_device(problem, device, stream, row, params);
    expect_result(problem, oracle);
    chosen = chosen || problem.explained(params).kernel == name;
    if (::testing::Test::HasFailure()) return;  // the first row is enough to look at
  }
  EXPECT_TRUE(chosen) << "explain() names " << problem.explained(params).kernel;

  SCOPED_TRACE("the public call");
  Workspace workspace(problem.workspace_size(params), stream);
  params.workspace = workspace.data(), params.workspace_bytes = workspace.bytes();
  run_on_device(problem, device, stream, [&](int) { problem.run(params, stream); });
  expect_result(problem, oracle);
  workspace.expect_guards_untouched();
}

}  // namespace dlattn::test
