// How the public functions behave on a device: streams, graphs, workspaces, wrong lengths, several callers.
#include <cuda.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>

#include "dlattn/runtime.h"
#include "ops/append_problem.h"
#include "ops/attention_problem.h"
#include "ops/kernel_rows.h"
#include "ops/paged_problem.h"
#include "ops/varlen_problem.h"
#include "support/message.h"

namespace dlattn::test {
namespace {

using cuda::check;

// What `call` queues on the stream, to be run again and again.
class Graph {
 public:
  template <typename Call>
  Graph(cudaStream_t stream, Call&& call) : stream_(stream) {
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
    call();
    cudaGraph_t graph = nullptr;
    check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
    check(cudaGraphInstantiate(&graph_, graph, 0), "cudaGraphInstantiate");
    check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph() { cudaGraphExecDestroy(graph_); }

  void launch() const { check(cudaGraphLaunch(graph_, stream_), "cudaGraphLaunch"); }

 private:
  cudaGraphExec_t graph_ = nullptr;
  cudaStream_t stream_;
};

class CallsCudaTest : public CudaTest {
 protected:
  // The call on the first problem, captured, then replayed on the memory's contents of each: all have the same shapes.
  template <typename Problem>
  void expect_replays(std::vector<Problem> problems) {
    Problem memory = problems[0];
    DeviceTensors device(memory.tensors(), stream());
    auto params = device.on_device(memory.params());
    Workspace workspace(memory.workspace_size(params), stream());
    params.workspace = workspace.data(), params.workspace_bytes = workspace.bytes();
    const Graph graph(stream(), [&] { memory.run(params, stream()); });
    for (size_t n = 0; n < problems.size(); ++n) {
      SCOPED_TRACE("replay " + std::to_string(n));
      Problem oracle = as_float32(problems[n]);
      oracle.run(oracle.params());
      for (size_t i = 0; i < memory.tensors().size(); ++i) {
        memory.tensors()[i]->restore(problems[n].tensors()[i]->bytes());
        if (!memory.tensors()[i]->bytes().empty()) device.upload(*memory.tensors()[i]);
      }
      graph.launch();
      stream().wait();
      device.download(memory.outputs());
      expect_result(memory, oracle);
    }
    workspace.expect_guards_untouched();
  }
};

TEST_F(CallsCudaTest, GraphOfDenseDecodeFollowsTheLengths) {
  for (DType dtype : kFloatTypes) {
    std::vector<DenseProblem> problems;
    for (const std::vector<int64_t>& lengths :
         {std::vector<int64_t>{700, 1300, 5}, std::vector<int64_t>{4000, 3999, 4000},
          std::vector<int64_t>{0, 1, 127}}) {
      AttentionCase c;
      c.dtype = dtype, c.batch_size = 3, c.seqlen_q = 1, c.seqlen_k = 4000, c.head_dim = c.head_dim_v = 64;
      c.lengths = true, c.len_k = lengths;
      problems.emplace_back(c);
    }
    expect_replays(problems);
  }
}

// More tiles than thread blocks, of different length: they are counted anew in each replay.
TEST_F(CallsCudaTest, GraphOfPrefillCountsAnew) {
  for (int64_t dim : {64, 128, 256}) {
    AttentionCase c;
    c.dtype = DType::kBFloat16, c.batch_size = 2, c.num_heads = 32, c.num_kv_heads = 8, c.seqlen_q = c.seqlen_k = 600;
    c.head_dim = c.head_dim_v = dim, c.is_causal = true, c.lengths = true;
    std::vector<DenseProblem> problems;
    for (const std::vector<int64_t>& lengths :
         {std::vector<int64_t>{600, 1}, std::vector<int64_t>{77, 600}, std::vector<int64_t>{600, 600}}) {
      c.len_k = lengths;
      problems.emplace_back(c);
    }
    expect_replays(problems);
  }
}

TEST_F(CallsCudaTest, GraphOfPagedDecodeFollowsTheLengthsAndTheTable) {
  std::vector<PagedProblem> problems;
  for (const std::vector<int64_t>& lengths :
       {std::vector<int64_t>{100, 2000}, std::vector<int64_t>{3000, 2999}, std::vector<int64_t>{0, 3}}) {
    PagedCase c{DType::kBFloat16, 16, {1, 1}, lengths, false};
    c.heads = {8, 2, 128, 128}, c.most_keys = 3000;
    problems.emplace_back(c);
  }
  expect_replays(problems);
}

TEST_F(CallsCudaTest, GraphOfVarlenFollowsTheLengths) {
  std::vector<VarlenProblem> problems;
  for (const std::vector<int64_t>& lengths :
       {std::vector<int64_t>{100, 50, 7}, std::vector<int64_t>{0, 157, 0}, std::vector<int64_t>{1, 6, 150}}) {
    VarlenCase c{DType::kFloat16, lengths, lengths};
    c.options.is_causal = true;
    problems.emplace_back(c);
  }
  expect_replays(problems);
}

TEST_F(CallsCudaTest, GraphOfPagedPrefillFollowsTheLengths) {
  std::vector<PagedProblem> problems;
  const std::vector<int64_t> queries[] = {{60, 4}, {0, 64}, {63, 1}}, keys[] = {{100, 1000}, {5, 64}, {1500, 1499}};
  for (int n = 0; n < 3; ++n) {
    PagedCase c{DType::kFloat32, 5, queries[n], keys[n], true};
    c.options.is_causal = true, c.most_keys = 1500;
    problems.emplace_back(c);
  }
  expect_replays(problems);
}

TEST_F(CallsCudaTest, GraphOfRotaryAppendFollowsTheSlots) {
  AppendCase c;
  c.dtype = DType::kBFloat16, c.rotary = true, c.head_dim = c.head_dim_v = c.rotary_dim = 64;
  AppendProblem problem(c);
  DeviceTensors device(problem.tensors(), stream());
  const RotaryAppendKVParams params = device.on_device(problem.params());
  const Graph graph(stream(), [&] { problem.run(params, stream()); });
  for (int replay = 0; replay < 3; ++replay) {
    std::reverse(problem.slots.begin() + replay, problem.slots.end());
    for (size_t t = 0; t < problem.slots.size(); ++t) {
      problem.slot_mapping.set(static_cast<double>(problem.slots[t]), t);
    }
    problem.restore();
    device.upload(problem.tensors());
    graph.launch();
    stream().wait();
    device.download(problem.outputs());
    problem.expect_definition();
  }
}

TEST_F(CallsCudaTest, StreamsGiveTheSameBits) {
  AttentionCase c;
  c.dtype = DType::kFloat16, c.seqlen_q = 2, c.seqlen_k = 2500;
  DenseProblem problem(c);
  DeviceTensors device(problem.tensors(), stream());
  AttentionParams params = device.on_device(problem.params());
  Workspace workspace(attn_workspace_size(params), stream());
  params.workspace = workspace.data(), params.workspace_bytes = workspace.bytes();
  stream().wait();
  attention(params, stream());
  stream().wait();
  device.download(problem.outputs());
  const std::vector<unsigned char> first = bytes_of(problem.outputs());
  problem.restore();
  device.upload(problem.outputs());
  attention(params);  // the legacy default stream
  check(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
  device.download(problem.outputs());
  EXPECT_TRUE(bytes_of(problem.outputs()) == first);
}

TEST_F(CallsCudaTest, SeveralCallersAtOnce) {
  std::vector<DenseProblem> problems;
  for (int64_t n = 0; n < 4; ++n) {
    AttentionCase c;
    c.dtype = kFloatTypes[n % 3], c.seqlen_q = n % 2 ? 1 : 70, c.seqlen_k = 1500 + n, c.head_dim = 64;
    problems.emplace_back(c);
  }
  std::vector<std::thread> callers;
  for (DenseProblem& problem : problems) {
    callers.emplace_back([&problem] {
      const DeviceStream own;
      DeviceTensors device(problem.tensors(), own);
      AttentionParams params = device.on_device(problem.params());
      Workspace workspace(attn_workspace_size(params), own);
      params.workspace = workspace.data(), params.workspace_bytes = workspace.bytes();
      run_on_device(problem, device, own, [&](int) {
        for (int n = 0; n < 20; ++n) attention(params, own);
      });
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (DenseProblem& problem : problems) {
    DenseProblem oracle = as_float32(problem);
    oracle.run(oracle.params());
    expect_result(problem, oracle);
  }
}

// One query over so many keys that they are split: a call that needs a workspace.
AttentionCase split_case() {
  AttentionCase c;
  c.batch_size = 1, c.seqlen_q = 1, c.seqlen_k = 5000;
  return c;
}

TEST_F(CallsCudaTest, WorkspaceThatIsMissingOrTooSmall) {
  DenseProblem problem(split_case());
  DeviceTensors device(problem.tensors(), stream());
  AttentionParams params = device.on_device(problem.params());
  const size_t bytes = attn_workspace_size(params);
  ASSERT_GT(bytes, 0u) << "one query over 5000 keys is split";
  EXPECT_NE(invalid_argument([&] { attention(params, stream()); }).find("workspace"), std::string::npos);
  Workspace workspace(bytes, stream());
  params.workspace = workspace.data(), params.workspace_bytes = bytes - 1;
  const std::string message = invalid_argument([&] { attn_decode(params, stream()); });
  EXPECT_NE(message.find("workspace"), std::string::npos) << message;
  EXPECT_NE(message.find(std::to_string(bytes - 1)), std::string::npos) << message;
  EXPECT_NE(message.find(std::to_string(bytes)), std::string::npos) << message;
  stream().wait();
  device.download(problem.outputs());
  EXPECT_TRUE(problem.out.bytes() == problem.clean_out) << "a refused call wrote";
  params.workspace_bytes = bytes;
  attention(params, stream());
  stream().wait();
}

TEST_F(CallsCudaTest, WorkspaceThatIsMisaligned) {
  DenseProblem problem(split_case());
  DeviceTensors device(problem.tensors(), stream());
  AttentionParams params = device.on_device(problem.params());
  const size_t bytes = attn_workspace_size(params);
  Workspace workspace(bytes + 256, stream());
  params.workspace_bytes = bytes;
  for (size_t shift : {16, 128, 1}) {
    params.workspace = static_cast<char*>(workspace.data()) + shift;
    const std::string message = invalid_argument([&] { attn_decode(params, stream()); });
    EXPECT_EQ(message.rfind("attn_decode: workspace is at an address", 0), 0u) << message;
    EXPECT_NE(message.find("256"), std::string::npos) << message;
  }
  stream().wait();
  device.download(problem.outputs());
  EXPECT_TRUE(problem.out.bytes() == problem.clean_out) << "a refused call wrote";
  params.workspace = static_cast<char*>(workspace.data()) + 256;
  attn_decode(params, stream());
  stream().wait();
}

TEST_F(CallsCudaTest, CallsWithoutWork) {
  AttentionParams params;
  params.device.type = DeviceType::kCUDA;
  params.head_dim = params.head_dim_v = 64;
  EXPECT_NO_THROW(attention(params, stream()));
  params.batch_size = 2, params.seqlen_k = 5000;
  EXPECT_NO_THROW(attn_decode(params, stream()));
  EXPECT_EQ(attn_workspace_size(params), 0u);
  VarlenAttentionParams ragged;
  ragged.device.type = DeviceType::kCUDA, ragged.head_dim = ragged.head_dim_v = 64;
  const DeviceBuffer zero(8);
  check(cudaMemset(zero.data(), 0, 8), "cudaMemset");
  ragged.cu_seqlens_q.data = ragged.cu_seqlens_k.data = zero.data();
  EXPECT_NO_THROW(attn_varlen(ragged, stream()));
  stream().wait();
}

// Lengths are on the device, where nobody checks them: wrong ones may give wrong results, but only of their own sequence, and
// neither reads nor writes outside the tensors.
TEST_F(CallsCudaTest, WrongLengthsOfADenseCacheStayInside) {
  for (const auto& [dtype, seqlen_q] : {std::pair(DType::kFloat32, 1), std::pair(DType::kFloat32, 40),
                                        std::pair(DType::kFloat16, 3), std::pair(DType::kBFloat16, 40)}) {
    AttentionCase c;
    c.dtype = dtype;
    c.batch_size = 5, c.seqlen_q = seqlen_q, c.seqlen_k = 300, c.lengths = true, c.len_k = {300, 300, 300, 300, 123};
    DenseProblem problem(c);
    DenseProblem oracle = as_float32(problem);
    oracle.run(oracle.params());
    const int64_t wrong[] = {-5, 301, 0x7fffffff, -0x7fffffff};
    for (int b = 0; b < 4; ++b) problem.lengths.set(static_cast<double>(wrong[b]), b);
    DeviceTensors device(problem.tensors(), stream());
    const AttentionParams params = device.on_device(problem.params());
    for (int row : rows_for(params)) {
      SCOPED_TRACE(cuda::kernel_table()[static_cast<size_t>(row)].name);
      run_row_on_device(problem, device, stream(), row, params);
      for (int64_t h = 0; h < c.num_heads; ++h) {
        EXPECT_TRUE(near(problem.lse.at(4, h, 0), oracle.lse.at(4, h, 0), lse_bound(c.dtype)));
        EXPECT_TRUE(
            near(problem.out.at(4, 0, h, 5), oracle.out.at(4, 0, h, 5), kernel_bound(c.dtype, c.scale, c.head_dim)));
      }
      problem.out.expect_gaps_untouched("out");
      problem.lse.expect_gaps_untouched("lse");
    }
  }
}

TEST_F(CallsCudaTest, WrongPrefixSumsStayInside) {
  VarlenCase c{DType::kFloat32, {5, 20, 1, 30}, {50, 20, 70, 30}};
  c.index = DType::kInt64;
  const std::vector<double> all[] = {{-4, 9, 3, 1e12, 7}, {60, 40, 20, 10, 0}, {0, 0, 59, 59, 1e6}};
  for (int n = 0; n < 6; ++n) {
    const std::vector<double>& wrong = all[n % 3];
    c.dtype = n < 3 ? DType::kFloat32 : DType::kBFloat16;
    c.options.mask = n < 4 ? RaggedMask::kBool : RaggedMask::kNone;
    VarlenProblem problem(c);
    for (size_t i = 0; i < wrong.size(); ++i) {
      problem.cu_seqlens_q.set(wrong[i], i);
      problem.cu_seqlens_k.set(wrong[wrong.size() - 1 - i], i);
    }
    DeviceTensors device(problem.tensors(), stream());
    const VarlenAttentionParams params = device.on_device(problem.params());
    for (int row : rows_for(params)) {
      SCOPED_TRACE(cuda::kernel_table()[static_cast<size_t>(row)].name);
      run_row_on_device(problem, device, stream(), row, params, Bits::kAny);
      problem.out.expect_gaps_untouched("out");
      problem.lse.expect_gaps_untouched("lse");
    }
  }
}

TEST_F(CallsCudaTest, WrongPagesAndLengthsOfAPagedCacheStayInside) {
  for (bool prefill : {false, true}) {
    PagedCase c{DType::kFloat16, 16, {2, 2, 2}, {90, 90, 90}, prefill};
    PagedProblem problem(c);
    problem.table.set(-1, 0, 2);
    problem.table.set(0x7fffffff, 0, 3);
    problem.seqlens_k.set(0x7fffffff, 1);
    problem.seqlens_k.set(-3, 2);
    DeviceTensors device(problem.tensors(), stream());
    const PagedAttentionParams params = device.on_device(problem.params());
    for (int row : rows_for(params)) {
      SCOPED_TRACE(cuda::kernel_table()[static_cast<size_t>(row)].name);
      run_row_on_device(problem, device, stream(), row, params);
      problem.out.expect_gaps_untouched("out");
      problem.lse.expect_gaps_untouched("lse");
    }
  }
}

// Not for the sanitizers, which take long enough.
class CallsCudaRulesTest : public CudaTest {
 protected:
  static constexpr int kCalls = 1000, kQueued = 25;  // calls that follow each other without a pause

  // Of every wgmma row that takes the call.
  template <typename Problem>
  void expect_same_bits_every_time(Problem problem) {
    Problem oracle = as_float32(problem);
    oracle.run(oracle.params());
    DeviceTensors device(problem.tensors(), stream());
    const auto params = device.on_device(problem.params());
    const std::vector<cuda::KernelRow>& table = cuda::kernel_table();
    int rows = 0;
    for (int index = 0; index < static_cast<int>(table.size()); ++index) {
      const cuda::KernelRow& row = table[static_cast<size_t>(index)];
      if (row.family != cuda::Family::kWgmma || !cuda::why_not(index, params).empty()) continue;
      SCOPED_TRACE(row.name);
      expect_same_bits_of_row(index, problem, oracle, device, params);
      if (HasFatalFailure()) return;
      ++rows;
    }
    if (rows == 0) GTEST_SKIP() << "no wgmma kernel runs here";
  }

 private:
  // All calls share a workspace.
  template <typename Problem, typename Params>
  void expect_same_bits_of_row(int index, Problem& problem, Problem& oracle, DeviceTensors& device, Params params) {
    run_row_on_device(problem, device, stream(), index, params);
    expect_result(problem, oracle);

    const size_t out_bytes = problem.out.bytes().size(), lse_bytes = problem.lse.bytes().size();
    const auto place = [](size_t bytes) { return (bytes + 255) / 256 * 256; };
    const size_t both = place(out_bytes) + place(lse_bytes);
    const DeviceBuffer results(kQueued * both);
    const auto offset = [](const Tensor& t) {  // of the first element
      return static_cast<size_t>(static_cast<const unsigned char*>(t.data()) - t.bytes().data());
    };
    Workspace workspace(cuda::row_workspace_size(index, params), stream());
    params.workspace = workspace.data(), params.workspace_bytes = workspace.bytes();
    std::vector<unsigned char> got(results.bytes());
    for (int round = 0; round < kCalls / kQueued; ++round) {
      check(cudaMemsetAsync(results.data(), 0xFF, results.bytes(), stream()), "cudaMemsetAsync");
      for (int n = 0; n < kQueued; ++n) {
        unsigned char* const at = results.data() + static_cast<size_t>(n) * both;
        params.out = at + offset(problem.out);
        params.lse = reinterpret_cast<float*>(at + place(out_bytes) + offset(problem.lse));
        cuda::run_row(index, params, stream());
      }
      check(cudaMemcpyAsync(got.data(), results.data(), got.size(), cudaMemcpyDeviceToHost, stream()),
            "cudaMemcpyAsync");
      stream().wait();
      for (int n = 0; n < kQueued; ++n) {
        const unsigned char* const at = got.data() + static_cast<size_t>(n) * both;
        ASSERT_TRUE(std::equal(problem.out.bytes().begin(), problem.out.bytes().end(), at))
            << "out of call " << round * kQueued + n << " has other bits";
        ASSERT_TRUE(std::equal(problem.lse.bytes().begin(), problem.lse.bytes().end(), at + place(out_bytes)))
            << "lse of call " << round * kQueued + n << " has other bits";
      }
    }
    workspace.expect_guards_untouched();
  }
};

// More items than thread blocks, of several lengths, which those take in any order.
TEST_F(CallsCudaRulesTest, CausalCallsHaveTheSameBitsEveryTime) {
  AttentionCase c;
  c.dtype = DType::kBFloat16, c.batch_size = 4, c.seqlen_q = 385, c.seqlen_k = 400, c.is_causal = true;
  c.num_heads = 16, c.num_kv_heads = 4, c.head_dim = c.head_dim_v = 64;
  expect_same_bits_every_time(DenseProblem(c));
}

TEST_F(CallsCudaRulesTest, PagedCallsHaveTheSameBitsEveryTime) {
  PagedCase c{DType::kBFloat16, 16, {150, 0, 1, 129, 17, 130}, {333, 40, 257, 129, 90, 400}, true, RaggedOptions{true}};
  c.heads = {16, 4, 128, 128};
  expect_same_bits_every_time(PagedProblem(c));
}

TEST_F(CallsCudaTest, DeviceOfAPointer) {
  const DeviceBuffer memory(64);
  EXPECT_EQ(cuda_device_of(memory.data()), 0);
  int on_the_host = 0;
  invalid_argument([&] { cuda_device_of(&on_the_host); });
}

// The later stream sees what the earlier one has written.
TEST_F(CallsCudaTest, OrderOfStreams) {
  constexpr size_t kBytes = size_t{64} << 20;
  const DeviceBuffer memory(kBytes);
  const DeviceStream later;
  std::vector<unsigned char> last(1);
  for (int round = 0; round < 5; ++round) {
    for (int fill = 0; fill <= 20; ++fill) {
      check(cudaMemsetAsync(memory.data(), 10 * round + fill, kBytes, stream()), "cudaMemsetAsync");
    }
    cuda_order_streams(0, stream(), later);
    check(cudaMemcpyAsync(last.data(), memory.data() + kBytes - 1, 1, cudaMemcpyDeviceToHost, later),
          "cudaMemcpyAsync");
    later.wait();
    EXPECT_EQ(last[0], 10 * round + 20);
    cuda_order_streams(0, later, stream());
  }
}

bool has_context(int device) {
  void* const driver = dlopen("libcuda.so.1", RTLD_LAZY);
  void* const function = driver == nullptr ? nullptr : dlsym(driver, "cuDevicePrimaryCtxGetState");
  if (function == nullptr) throw std::runtime_error("no cuDevicePrimaryCtxGetState");
  unsigned flags = 0;
  int active = -1;
  check(static_cast<cudaError_t>(
            reinterpret_cast<decltype(&cuDevicePrimaryCtxGetState)>(function)(device, &flags, &active)),
        "cuDevicePrimaryCtxGetState");
  return active != 0;
}

// In a process of its own, for a context stays once it is there.
TEST(DeviceGuardDeathTest, MakesNoContextOnTheCurrentDevice) {
  if (cuda::device_count() < 2) GTEST_SKIP() << "there is no second CUDA device";
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto require = [](bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "not so: %s\n", what);
    std::exit(1);
  };
  const auto calls = [&] {
    void* memory = nullptr;
    for (int round = 0; round < 2; ++round) {
      const cuda::DeviceGuard other(1);
      check(cudaMalloc(&memory, 64), "cudaMalloc");
      const cuda::DeviceGuard same(1);
    }
    int current = -1;
    check(cudaGetDevice(&current), "cudaGetDevice");
    require(current == 0, "the first device is current again");
    require(!has_context(0), "the guard made a context");
    require(has_context(1), "the other device has one");
    require(cuda_device_of(memory) == 1, "memory of the other device");
    cuda_order_streams(1, nullptr, nullptr);
    require(!has_context(0), "a question or an order made a context");
    check(cudaMalloc(&memory, 64), "cudaMalloc");
    require(cuda_device_of(memory) == 0, "memory of the first device");
    std::exit(0);
  };
  EXPECT_EXIT(calls(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace dlattn::test
