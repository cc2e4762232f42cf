// Times attention kernels: one JSON line for each shape and kernel.
//
//   bench_attention                       the shapes below, each on the kernel that the library chooses
//   bench_attention --rows all            each on every kernel that can run it
//   bench_attention --rows NAME           only on kernels whose name contains NAME
//   bench_attention --shape B,Q,K,H,HKV,D,DTYPE[,causal][,page=N]     instead of the shapes below; may be repeated
//
// A CUDA graph runs the call on several sets of inputs, together larger than the cache; microseconds a call are the median of
// 15 replays after 3. GB/s counts q, k, v and out once; TFLOP/s counts 4 operations a visible score and dimension.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "cuda/check.h"
#include "cuda/kernel_table.h"
#include "dlattn/dlattn.h"
#include "element.h"

namespace dlattn::bench {
namespace {

using cuda::check;

constexpr size_t kInputBytes = size_t{300} << 20;  // more than the L2 of any GPU of today
constexpr int kMaxSets = 256, kWarmups = 3, kReplays = 15;

struct Shape {
  int64_t batch_size, seqlen_q, seqlen_k, num_heads, num_kv_heads, head_dim;
  DType dtype;
  bool is_causal = false;
  int64_t page_size = 0;  // 0: not paged
};

constexpr DType kF32 = DType::kFloat32, kF16 = DType::kFloat16, kBf16 = DType::kBFloat16;

const Shape kShapes[] = {
    {1, 4096, 4096, 16, 16, 128, kF32},
    {1, 4096, 4096, 16, 16, 128, kF32, true},
    {1, 4096, 4096, 16, 16, 128, kBf16},
    {1, 4096, 4096, 16, 16, 128, kBf16, true},
    {1, 4096, 4096, 16, 16, 64, kF32, true},
    {1, 2048, 2048, 16, 16, 256, kF32, true},
    {8, 1, 2048, 32, 32, 128, kBf16},
    {1, 1, 8192, 32, 8, 128, kBf16},
    {16, 1, 8192, 32, 8, 128, kBf16},
    {1, 1, 8192, 32, 8, 128, kF16},
    {16, 1, 8192, 32, 8, 128, kF16},
    {1, 1, 8192, 32, 8, 128, kF32},
    {16, 1, 8192, 32, 8, 128, kF32},
    {1, 1, 512, 32, 8, 128, kBf16},
    {32, 1, 1024, 32, 8, 64, kBf16},
    {16, 1, 4096, 16, 16, 256, kBf16},
    {16, 1, 8192, 32, 8, 128, kBf16, false, 16},
    {1, 1, 8192, 32, 8, 128, kBf16, false, 16},
    {16, 4, 8192, 32, 8, 128, kBf16, true, 16},
};

class Memory {
 public:
  explicit Memory(size_t bytes) : bytes_(bytes) { check(cudaMalloc(&data_, std::max<size_t>(bytes, 1)), "cudaMalloc"); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() { cudaFree(data_); }

  char* data() const { return static_cast<char*>(data_); }

  // The first megabytes are copied over and over.
  void fill(const std::vector<char>& values) const {
    size_t done = std::min(bytes_, values.size());
    check(cudaMemcpy(data_, values.data(), done, cudaMemcpyHostToDevice), "cudaMemcpy");
    for (; done < bytes_; done *= 2) {
      check(cudaMemcpy(data() + done, data_, std::min(done, bytes_ - done), cudaMemcpyDeviceToDevice), "cudaMemcpy");
    }
  }

 private:
  void* data_ = nullptr;
  size_t bytes_;
};

// Within -1 .. 1. bfloat16: the upper half of a float32; float16: any sign and mantissa, exponents of 2^-5 to 2^-1.
std::vector<char> random_values(DType dtype) {
  constexpr size_t kCount = 1'000'003;
  std::mt19937 random(1);
  std::vector<char> bytes(kCount * static_cast<size_t>(size_of(dtype)));
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  for (size_t i = 0; i < kCount; ++i) {
    const float x = uniform(random);
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    if (dtype == kF32) {
      std::memcpy(&bytes[4 * i], &bits, 4);
    } else {
      const auto half = static_cast<uint16_t>(
          dtype == kBf16 ? bits >> 16 : (random() & 0x83ff) | (10 + random() % 5) << 10);  // biased by 15
      std::memcpy(&bytes[2 * i], &half, 2);
    }
  }
  return bytes;
}

// One set of inputs, [batch, seq, heads, dim] each; paged: as many pages as the sequences need, in random order.
struct Inputs {
  Inputs(const Shape& shape, const std::vector<char>& values) : s(shape) {
    const auto item = static_cast<size_t>(size_of(s.dtype));
    q = std::make_unique<Memory>(item * static_cast<size_t>(queries() * s.head_dim));
    k = std::make_unique<Memory>(item * static_cast<size_t>(keys() * s.head_dim));
    v = std::make_unique<Memory>(item * static_cast<size_t>(keys() * s.head_dim));
    out = std::make_unique<Memory>(item * static_cast<size_t>(queries() * s.head_dim));
    for (const Memory* memory : {q.get(), k.get(), v.get()}) memory->fill(values);
    if (s.page_size == 0) return;
    std::vector<int32_t> ids(static_cast<size_t>(s.batch_size * pages()));
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), std::mt19937(2));
    const std::vector<int32_t> lengths(static_cast<size_t>(s.batch_size), static_cast<int32_t>(s.seqlen_k));
    table = upload(ids), seqlens_k = upload(lengths);
  }

  static std::unique_ptr<Memory> upload(const std::vector<int32_t>& values) {
    auto memory = std::make_unique<Memory>(4 * values.size());
    check(cudaMemcpy(memory->data(), values.data(), 4 * values.size(), cudaMemcpyHostToDevice), "cudaMemcpy");
    return memory;
  }

  int64_t queries() const { return s.batch_size * s.seqlen_q * s.num_heads; }
  int64_t pages() const { return (s.seqlen_k + s.page_size - 1) / s.page_size; }  // of a sequence
  int64_t keys() const {
    return s.batch_size * s.num_kv_heads * (s.page_size == 0 ? s.seqlen_k : pages() * s.page_size);
  }

  template <typename Params>
  void set_common(Params& p) const {
    p.device.type = DeviceType::kCUDA, p.dtype = s.dtype, p.batch_size = s.batch_size, p.seqlen_q = s.seqlen_q;
    p.num_heads = s.num_heads, p.num_kv_heads = s.num_kv_heads, p.head_dim = p.head_dim_v = s.head_dim;
    p.q = q->data(), p.out = out->data();
    p.q_stride_head = p.out_stride_head = p.k_stride_head = p.v_stride_head = s.head_dim;
    p.q_stride_seq = p.out_stride_seq = s.num_heads * s.head_dim;
    p.k_stride_seq = p.v_stride_seq = s.num_kv_heads * s.head_dim;
    p.q_stride_batch = p.out_stride_batch = s.seqlen_q * p.q_stride_seq;
    p.options.is_causal = s.is_causal;
  }

  AttentionParams dense() const {
    AttentionParams p;
    set_common(p);
    p.seqlen_k = s.seqlen_k, p.k = k->data(), p.v = v->data();
    p.k_stride_batch = p.v_stride_batch = s.seqlen_k * p.k_stride_seq;
    return p;
  }

  PagedAttentionParams paged() const {
    PagedAttentionParams p;
    set_common(p);
    p.k_cache = k->data(), p.v_cache = v->data();
    p.num_pages = s.batch_size * pages(), p.page_size = s.page_size, p.max_pages = pages();
    p.k_stride_page = p.v_stride_page = s.page_size * p.k_stride_seq;
    p.page_table.data = table->data(), p.page_table_stride_batch = pages();
    p.seqlens_k.data = seqlens_k->data();
    return p;
  }

  Shape s;
  std::unique_ptr<Memory> q, k, v, out, table, seqlens_k;
};

// Median microseconds of a replay.
double time_graph(cudaGraphExec_t graph, cudaStream_t stream) {
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin), "cudaEventCreate");
  check(cudaEventCreate(&end), "cudaEventCreate");
  std::vector<float> times;
  for (int i = 0; i < kWarmups + kReplays; ++i) {
    check(cudaEventRecord(begin, stream), "cudaEventRecord");
    check(cudaGraphLaunch(graph, stream), "cudaGraphLaunch");
    check(cudaEventRecord(end, stream), "cudaEventRecord");
    check(cudaEventSynchronize(end), "cudaEventSynchronize");
    float milliseconds = 0.0f;
    check(cudaEventElapsedTime(&milliseconds, begin, end), "cudaEventElapsedTime");
    if (i >= kWarmups) times.push_back(milliseconds);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  std::sort(times.begin(), times.end());
  return 1000.0 * times[times.size() / 2];
}

void print(const Shape& s, const cuda::KernelRow& row, double us, int sets) {
  double scores = 0.0;  // that are visible, of a head
  for (int64_t i = 0; i < s.seqlen_q; ++i) {
    const int64_t visible = s.is_causal ? i + 1 + s.seqlen_k - s.seqlen_q : s.seqlen_k;
    scores += static_cast<double>(std::max<int64_t>(visible, 0));
  }
  const auto b = static_cast<double>(s.batch_size), h = static_cast<double>(s.num_heads);
  const auto d = static_cast<double>(s.head_dim);
  const double operations = 4.0 * b * h * d * scores;
  const double bytes = static_cast<double>(size_of(s.dtype)) * 2.0 * b * d *
                       (static_cast<double>(s.seqlen_k * s.num_kv_heads) + static_cast<double>(s.seqlen_q) * h);
  std::printf(
      "{\"batch_size\": %lld, \"seqlen_q\": %lld, \"seqlen_k\": %lld, \"num_heads\": %lld, \"num_kv_heads\": %lld, "
      "\"head_dim\": %lld, \"dtype\": \"%s\", \"is_causal\": %s, \"page_size\": %lld, \"kernel\": \"%s\", \"us\": "
      "%.2f, "
      "\"tflop_s\": %.2f, \"gb_s\": %.0f, \"input_sets\": %d}\n",
      static_cast<long long>(s.batch_size), static_cast<long long>(s.seqlen_q), static_cast<long long>(s.seqlen_k),
      static_cast<long long>(s.num_heads), static_cast<long long>(s.num_kv_heads), static_cast<long long>(s.head_dim),
      name_of(s.dtype), s.is_causal ? "true" : "false", static_cast<long long>(s.page_size), row.name, us,
      operations / us * 1e-6, bytes / us * 1e-3, sets);
  std::fflush(stdout);
}

template <typename Params>
void time_rows(const Shape& shape, const std::vector<Params>& sets, const std::string& rows, cudaStream_t stream) {
  const std::string chosen = explain(sets[0]).kernel;
  for (int row = 0; row < static_cast<int>(cuda::kernel_table().size()); ++row) {
    const cuda::KernelRow& kernel = cuda::kernel_table()[static_cast<size_t>(row)];
    const bool wanted = rows.empty()    ? chosen == kernel.name
                        : rows == "all" ? true
                                        : std::string(kernel.name).find(rows) != std::string::npos;
    if (!wanted || !cuda::why_not(row, sets[0]).empty()) continue;
    const size_t bytes = cuda::row_workspace_size(row, sets[0]);
    const Memory workspace(bytes);
    cudaGraph_t graph;
    cudaGraphExec_t instance;
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
    for (Params params : sets) {
      params.workspace = workspace.data(), params.workspace_bytes = bytes;
      cuda::run_row(row, params, stream);
    }
    check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
    check(cudaGraphInstantiate(&instance, graph, 0), "cudaGraphInstantiate");
    print(shape, kernel, time_graph(instance, stream) / static_cast<double>(sets.size()),
          static_cast<int>(sets.size()));
    cudaGraphExecDestroy(instance);
    cudaGraphDestroy(graph);
  }
}

void time_shape(const Shape& shape, const std::string& rows, cudaStream_t stream) {
  const std::vector<char> values = random_values(shape.dtype);
  std::vector<std::unique_ptr<Inputs>> inputs;
  size_t bytes = 0;
  while (inputs.empty() || (bytes < kInputBytes && static_cast<int>(inputs.size()) < kMaxSets)) {
    inputs.push_back(std::make_unique<Inputs>(shape, values));
    bytes += static_cast<size_t>(size_of(shape.dtype) * 2 * shape.head_dim *
                                 (inputs.back()->keys() + inputs.back()->queries()));
  }
  std::vector<AttentionParams> dense;
  std::vector<PagedAttentionParams> paged;
  for (const auto& one : inputs) shape.page_size == 0 ? dense.push_back(one->dense()) : paged.push_back(one->paged());
  dense.empty() ? time_rows(shape, paged, rows, stream) : time_rows(shape, dense, rows, stream);
}

Shape parse_shape(const std::string& text) {
  std::vector<std::string> fields;
  std::istringstream stream(text);
  for (std::string field; std::getline(stream, field, ',');) fields.push_back(field);
  if (fields.size() < 7)
    throw std::runtime_error("--shape is " + text + ", expected B,Q,K,H,HKV,D,DTYPE[,causal][,page=N]");
  Shape s{};
  int64_t* const sizes[] = {&s.batch_size, &s.seqlen_q, &s.seqlen_k, &s.num_heads, &s.num_kv_heads, &s.head_dim};
  for (size_t i = 0; i < 6; ++i) *sizes[i] = std::stoll(fields[i]);
  const std::string& dtype = fields[6];
  if (dtype != "f32" && dtype != "f16" && dtype != "bf16") {
    throw std::runtime_error("--shape: DTYPE is " + dtype + ", expected f32, f16 or bf16");
  }
  s.dtype = dtype == "f32" ? kF32 : dtype == "f16" ? kF16 : kBf16;
  for (size_t i = 7; i < fields.size(); ++i) {
    if (fields[i] == "causal") {
      s.is_causal = true;
    } else if (fields[i].rfind("page=", 0) == 0) {
      s.page_size = std::stoll(fields[i].substr(5));
    } else {
      throw std::runtime_error("--shape: unknown " + fields[i]);
    }
  }
  return s;
}

int run(int argc, char** argv) {
  std::vector<Shape> shapes;
  std::string rows;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (i + 1 >= argc || (name != "--rows" && name != "--shape")) {
      std::fprintf(stderr,
                   "usage: bench_attention [--rows all|NAME] [--shape B,Q,K,H,HKV,D,DTYPE[,causal][,page=N]]...\n");
      return 2;
    }
    if (name == "--rows")
      rows = argv[++i];
    else
      shapes.push_back(parse_shape(argv[++i]));
  }
  if (shapes.empty()) shapes.assign(std::begin(kShapes), std::end(kShapes));
  cudaStream_t stream;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  for (const Shape& shape : shapes) time_shape(shape, rows, stream);
  check(cudaStreamDestroy(stream), "cudaStreamDestroy");
  return 0;
}

}  // namespace
}  // namespace dlattn::bench

int main(int argc, char** argv) {
  try {
    return dlattn::bench::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_attention: %s\n", error.what());
    return 1;
  }
}
