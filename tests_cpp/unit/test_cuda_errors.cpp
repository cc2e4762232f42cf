// Calls for a device that is not there: a clear error, before anything is touched. Runs with and without a GPU.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cuda/device.h"
#include "dlattn/dlattn.h"
#include "ops/append_problem.h"
#include "ops/attention_problem.h"
#include "ops/merge_problem.h"
#include "ops/paged_problem.h"
#include "ops/rotary_problem.h"
#include "ops/varlen_problem.h"
#include "support/message.h"

namespace dlattn::test {
namespace {

// Device 0 of a machine without a GPU; one past the last of a machine with some.
Device absent() { return {DeviceType::kCUDA, cuda::device_count()}; }

// Without a driver the runtime answers every call, this one too, with an error.
void expect_nothing_left_behind() {
  const cudaError_t error = cudaPeekAtLastError();
  EXPECT_TRUE(error == cudaSuccess || cuda::device_count() == 0) << cudaGetErrorName(error) << " stays behind";
}

// How every error begins: the operation, and the device that is not there.
std::string beginning(const char* op) {
  const int count = cuda::device_count();
  const std::string text = std::string(op) + ": device is cuda:" + std::to_string(count);
  if (count == 0) return text + ", but this machine has no usable CUDA device: ";
  return text + ", expected cuda:0..cuda:" + std::to_string(count - 1);
}

// Where there are GPUs, the number of another is the caller's mistake.
template <typename Call>
void expect_no_such_device(const char* op, Call&& call) {
  SCOPED_TRACE(op);
  std::string text;
  try {
    call();
    ADD_FAILURE() << "no error";
  } catch (const CudaError& error) {
    EXPECT_EQ(cuda::device_count(), 0) << "expected InvalidArgument";
    text = error.what();
  } catch (const InvalidArgument& error) {
    EXPECT_GT(cuda::device_count(), 0) << "expected CudaError";
    text = error.what();
  }
  EXPECT_EQ(text.substr(0, beginning(op).size()), beginning(op)) << text;
  expect_nothing_left_behind();
}

// The problem's memory is the host's: nothing may touch it through a device.
template <typename Problem>
void expect_refused(const char* op, Problem problem) {
  auto params = problem.params();
  params.device = absent();
  expect_no_such_device(op, [&] { problem.run(params); });
  EXPECT_TRUE(bytes_of(problem.outputs()) == bytes_of(Problem(problem.c).outputs())) << "outputs were written";
}

template <typename Params>
void expect_explained(const char* op, Params params) {
  SCOPED_TRACE(op);
  params.device = absent();
  const Explanation explanation = explain(params);
  EXPECT_FALSE(explanation.supported);
  EXPECT_EQ(explanation.backend, "cuda");
  EXPECT_EQ(explanation.kernel, "");
  EXPECT_FALSE(explanation.reason.empty());
  expect_nothing_left_behind();
}

TEST(CudaErrorsTest, CallsThrow) {
  expect_refused("attention", DenseProblem(AttentionCase()));
  expect_refused("attn_varlen", VarlenProblem({DType::kFloat16, {3, 4}, {5, 6}}));
  expect_refused("attn_paged_decode", PagedProblem({DType::kBFloat16, 16, {1, 1}, {5, 60}, false}));
  expect_refused("attn_paged_prefill", PagedProblem({DType::kBFloat16, 16, {1, 7}, {5, 60}, true}));
  expect_refused("rotary_embedding", RotaryProblem(RotaryCase()));
  expect_refused("merge_attention_states", MergeProblem(MergeCase()));
  for (const AppendCase& c : {AppendCase(), forms_of(AppendCase())[2]}) {
    AppendProblem problem(c);
    RotaryAppendKVParams params = problem.params();
    params.rotary.device = params.append.device = absent();
    expect_no_such_device(c.rotary ? "rotary_append_kv" : "append_kv", [&] { problem.run(params); });
  }
}

TEST(CudaErrorsTest, WorkspaceSizesThrow) {
  DenseProblem problem{AttentionCase()};
  AttentionParams params = problem.params();
  params.device = absent();
  expect_no_such_device("attn_workspace_size", [&] { attn_workspace_size(params); });
}

TEST(CudaErrorsTest, MistakesAreFoundBeforeTheDeviceIs) {
  DenseProblem problem{AttentionCase()};
  AttentionParams params = problem.params();
  params.device = absent();
  params.num_kv_heads = 3;
  EXPECT_NE(invalid_argument([&] { attention(params); }).find("num_heads"), std::string::npos);
  params = problem.params();
  params.device = {DeviceType::kCUDA, -1};
  EXPECT_NE(invalid_argument([&] { attention(params); }).find("device"), std::string::npos);
}

TEST(CudaErrorsTest, ExplainAnswers) {
  expect_explained("attention", DenseProblem(AttentionCase()).params());
  expect_explained("attn_varlen", VarlenProblem({DType::kFloat16, {3, 4}, {5, 6}}).params());
  expect_explained("attn_paged_decode", PagedProblem({DType::kBFloat16, 16, {1, 1}, {5, 60}, false}).params());
  expect_explained("rotary_embedding", RotaryProblem(RotaryCase()).params());
  MergeProblem merge{MergeCase()};
  expect_explained("merge_attention_states", merge.params());
  AppendProblem append{AppendCase()};
  expect_explained("append_kv", append.params().append);
}

TEST(CudaErrorsTest, DevicesOfPointersAndStreams) {
  if (cuda::device_count() > 0) GTEST_SKIP() << "this machine has a GPU";
  int on_the_host = 0;
  EXPECT_THROW(cuda_device_of(&on_the_host), Error);
  EXPECT_THROW(cuda_order_streams(0, nullptr, nullptr), CudaError);
  expect_nothing_left_behind();
}

TEST(CudaErrorsTest, InfoNamesWhatWasBuilt) {
  const Info there = info();
  EXPECT_TRUE(there.cuda_compiled);
  ASSERT_FALSE(there.cuda_families.empty());
  EXPECT_EQ(there.cuda_families.front(), "simt");
  EXPECT_EQ(static_cast<int>(there.cuda_devices.size()), cuda::device_count());
  EXPECT_FALSE(there.cuda_architectures.empty());
  EXPECT_FALSE(there.cuda_kernels.empty());
  EXPECT_FALSE(there.cuda_runtime.empty());
}

}  // namespace
}  // namespace dlattn::test
