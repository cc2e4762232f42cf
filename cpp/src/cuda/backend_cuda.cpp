// The CUDA backend's attention: choose a row of the kernel table, check the workspace, launch.
#include <cuda_runtime_api.h>

#include "backend.h"
#include "cuda/device.h"
#include "cuda/kernel_table.h"
#include "cuda/select.h"
#include "cuda_archs.h"
#include "dlattn/error.h"

namespace dlattn::cuda {
namespace {

const char* op_name(const AttentionParams&, AttentionOp op) {
  return op == AttentionOp::kPrefill ? "attn_prefill" : op == AttentionOp::kDecode ? "attn_decode" : "attention";
}
const char* op_name(const VarlenAttentionParams&, AttentionOp) { return "attn_varlen"; }
const char* op_name(const PagedAttentionParams& params, AttentionOp) {
  return params.cu_seqlens_q.data != nullptr || params.total_q > 0 ? "attn_paged_prefill" : "attn_paged_decode";
}

void check_workspace(const char* op, const void* workspace, size_t bytes, size_t needed) {
  if (needed == 0) return;
  constexpr uintptr_t kAlignment = 256;  // as params.h asks
  const auto address = reinterpret_cast<uintptr_t>(workspace);
  if (workspace == nullptr || bytes < needed) {
    throw InvalidArgument(std::string(op) + ": workspace_bytes is " + std::to_string(workspace == nullptr ? 0 : bytes) +
                          ", expected at least " + std::to_string(needed) + " (= attn_workspace_size(params))");
  }
  if (address % kAlignment != 0) {
    throw InvalidArgument(std::string(op) + ": workspace is at an address that is " +
                          std::to_string(address % kAlignment) + " modulo 256, expected a multiple of 256");
  }
}

template <typename Params>
void launch(const char* op, const KernelRow& row, const AttentionProblem& problem, const Params& params,
            Stream stream) {
  LaunchContext context;
  context.device = params.device.index;
  context.caps = device_caps(params.device.index);
  context.workspace = params.workspace;
  context.stream = stream;
  check_workspace(op, params.workspace, params.workspace_bytes, workspace_size(row, problem, context.caps));
  const DeviceGuard guard(params.device.index);
  row.launch(problem, row, context);
}

template <typename Params>
void run(const Params& params, AttentionOp op, Stream stream) {
  const char* name = op_name(params, op);
  require_device(name, params.device.index);
  const std::optional<Family> forced = forced_family();
  const AttentionProblem problem = make_problem(params);
  if (problem.is_empty()) return;
  const DeviceCaps& caps = device_caps(params.device.index);
  const int row = select_row(kernel_table(), problem, caps, forced);
  if (row < 0) {
    throw Unsupported(std::string(name) + ": " + select_attention(kernel_table(), problem, caps, forced).reason);
  }
  launch(name, kernel_table()[static_cast<size_t>(row)], problem, params, stream);
}

template <typename Params>
size_t workspace(const Params& params) {
  require_device("attn_workspace_size", params.device.index);
  const std::optional<Family> forced = forced_family();
  return workspace_size(kernel_table(), make_problem(params), device_caps(params.device.index), forced);
}

template <typename Params>
Explanation answer(const Params& params) {
  Explanation explanation{false, "cuda", "", ""};
  const std::optional<Family> forced = forced_family();
  try {
    explanation.reason = why_device_cannot_run(params.device.index);
    if (!explanation.reason.empty()) return explanation;
    const Selection selection =
        select_attention(kernel_table(), make_problem(params), device_caps(params.device.index), forced);
    explanation.reason = selection.reason;
    if (selection.row < 0) return explanation;
    explanation.supported = true;
    explanation.kernel = kernel_table()[static_cast<size_t>(selection.row)].name;
  } catch (const CudaError& error) {  // no such device
    explanation.reason = error.what();
  }
  return explanation;
}

template <typename Params>
std::string row_why_not(int row, const Params& params) {
  return why_not(kernel_table()[static_cast<size_t>(row)], make_problem(params), device_caps(params.device.index));
}

template <typename Params>
size_t row_workspace(int row, const Params& params) {
  return workspace_size(kernel_table()[static_cast<size_t>(row)], make_problem(params),
                        device_caps(params.device.index));
}

template <typename Params>
void run_on_row(int row, const Params& params, cudaStream_t stream) {
  const AttentionProblem problem = make_problem(params);
  if (problem.is_empty()) return;
  launch(op_name(params, AttentionOp::kAuto), kernel_table()[static_cast<size_t>(row)], problem, params, stream);
}

std::string version_text(int version) {  // 13000
  return version == 0 ? "" : std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

}  // namespace

bool compiled() { return true; }

std::vector<std::string> families() {
  std::vector<std::string> names;
  for (const KernelRow& row : kernel_table()) {
    if (names.empty() || names.back() != name_of(row.family)) names.push_back(name_of(row.family));
  }
  return names;
}

std::vector<std::string> devices() { return device_names(); }

std::vector<std::string> architectures() {
  std::vector<std::string> names;
  for (const ArchTarget& target : kSimtArchs) names.push_back(to_string(target));
  return names;
}

std::vector<std::string> kernels() {
  std::vector<std::string> names;
  for (const KernelRow& row : kernel_table()) names.push_back(row.name);
  return names;
}

std::string runtime_version() {
  int version = 0;
  return cudaRuntimeGetVersion(&version) == cudaSuccess ? version_text(version) : "";
}

std::string driver_version() {
  int version = 0;
  if (cudaDriverGetVersion(&version) == cudaSuccess) return version_text(version);
  cudaGetLastError();
  return "";
}

void attention(const AttentionParams& params, AttentionOp op, Stream stream) { run(params, op, stream); }
void attention(const VarlenAttentionParams& params, Stream stream) { run(params, AttentionOp::kAuto, stream); }
void attention(const PagedAttentionParams& params, Stream stream) { run(params, AttentionOp::kAuto, stream); }

size_t workspace_size(const AttentionParams& params, AttentionOp) { return workspace(params); }
size_t workspace_size(const VarlenAttentionParams& params) { return workspace(params); }
size_t workspace_size(const PagedAttentionParams& params) { return workspace(params); }

Explanation explain(const AttentionParams& params, AttentionOp) { return answer(params); }
Explanation explain(const VarlenAttentionParams& params) { return answer(params); }
Explanation explain(const PagedAttentionParams& params) { return answer(params); }

std::string why_not(int row, const AttentionParams& params) { return row_why_not(row, params); }
std::string why_not(int row, const VarlenAttentionParams& params) { return row_why_not(row, params); }
std::string why_not(int row, const PagedAttentionParams& params) { return row_why_not(row, params); }
size_t row_workspace_size(int row, const AttentionParams& params) { return row_workspace(row, params); }
size_t row_workspace_size(int row, const VarlenAttentionParams& params) { return row_workspace(row, params); }
size_t row_workspace_size(int row, const PagedAttentionParams& params) { return row_workspace(row, params); }
void run_row(int row, const AttentionParams& params, cudaStream_t stream) { run_on_row(row, params, stream); }
void run_row(int row, const VarlenAttentionParams& params, cudaStream_t stream) { run_on_row(row, params, stream); }
void run_row(int row, const PagedAttentionParams& params, cudaStream_t stream) { run_on_row(row, params, stream); }

}  // namespace dlattn::cuda
