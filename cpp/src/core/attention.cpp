// Public attention functions: validate, then the backend of the device.
#include "dlattn/attention.h"

#include "backend.h"
#include "core/validate.h"

namespace dlattn {
namespace {

using core::Depth;

// Up to this many queries a call is bound by reading the cache, which the decode kernels split over all cores.
constexpr int64_t kMaxDecodeQueries = 16;

AttentionOp resolve(const AttentionParams& params, AttentionOp op) {
  if (op != AttentionOp::kAuto) return op;
  return params.seqlen_q <= kMaxDecodeQueries ? AttentionOp::kDecode : AttentionOp::kPrefill;
}

const char* name_of(AttentionOp op) {
  return op == AttentionOp::kPrefill ? "attn_prefill" : op == AttentionOp::kDecode ? "attn_decode" : "attention";
}

const char* name_of(const PagedAttentionParams& params) {
  return params.cu_seqlens_q.data != nullptr || params.total_q > 0 ? "attn_paged_prefill" : "attn_paged_decode";
}

bool on_cpu(Device device) { return device.type == DeviceType::kCPU; }

void run(const AttentionParams& params, AttentionOp op, Stream stream) {
  core::validate(name_of(op), params, Depth::kCall);
  if (!on_cpu(params.device)) return cuda::attention(params, op, stream);  // chooses by its own table
  if (params.batch_size == 0 || params.seqlen_q == 0 || params.num_heads == 0) return;
  cpu::attention(params, resolve(params, op));
}

void run(const char* op, const PagedAttentionParams& params, Stream stream) {
  core::validate(op, params, Depth::kCall);
  if (!on_cpu(params.device)) return cuda::attention(params, stream);
  if (params.batch_size == 0 || params.seqlen_q + params.total_q == 0 || params.num_heads == 0) return;
  cpu::attention(params);
}

}  // namespace

void attention(const AttentionParams& params, Stream stream) { run(params, AttentionOp::kAuto, stream); }
void attn_prefill(const AttentionParams& params, Stream stream) { run(params, AttentionOp::kPrefill, stream); }
void attn_decode(const AttentionParams& params, Stream stream) { run(params, AttentionOp::kDecode, stream); }

void attn_varlen(const VarlenAttentionParams& params, Stream stream) {
  core::validate("attn_varlen", params, Depth::kCall);
  if (!on_cpu(params.device)) return cuda::attention(params, stream);
  if (params.batch_size == 0 || params.total_q == 0 || params.num_heads == 0) return;
  cpu::attention(params);
}

void attn_paged_decode(const PagedAttentionParams& params, Stream stream) { run("attn_paged_decode", params, stream); }
void attn_paged_prefill(const PagedAttentionParams& params, Stream stream) {
  run("attn_paged_prefill", params, stream);
}

void merge_attention_states(const MergeParams& params, Stream stream) {
  core::validate("merge_attention_states", params, Depth::kCall);
  if (!on_cpu(params.device)) return cuda::merge(params, stream);
  if (params.batch_size == 0 || params.seqlen_q == 0 || params.num_heads == 0) return;
  cpu::merge(params);
}

size_t attn_workspace_size(const AttentionParams& params, AttentionOp op) {
  core::validate(name_of(op), params, Depth::kShapes);
  return on_cpu(params.device) ? 0 : cuda::workspace_size(params, op);
}

size_t attn_workspace_size(const VarlenAttentionParams& params) {
  core::validate("attn_varlen", params, Depth::kShapes);
  return on_cpu(params.device) ? 0 : cuda::workspace_size(params);
}

size_t attn_workspace_size(const PagedAttentionParams& params) {
  core::validate(name_of(params), params, Depth::kShapes);
  return on_cpu(params.device) ? 0 : cuda::workspace_size(params);
}

void validate(const AttentionParams& params, AttentionOp op) { core::validate(name_of(op), params, Depth::kInputs); }
void validate(const VarlenAttentionParams& params) { core::validate("attn_varlen", params, Depth::kInputs); }
void validate(const PagedAttentionParams& params) { core::validate(name_of(params), params, Depth::kInputs); }
void validate(const MergeParams& params) { core::validate("merge_attention_states", params, Depth::kInputs); }

Explanation explain(const AttentionParams& params, AttentionOp op) {
  core::validate(name_of(op), params, Depth::kShapes);
  return on_cpu(params.device) ? cpu::explain(params, resolve(params, op)) : cuda::explain(params, op);
}

Explanation explain(const VarlenAttentionParams& params) {
  core::validate("attn_varlen", params, Depth::kShapes);
  return on_cpu(params.device) ? cpu::explain(params) : cuda::explain(params);
}

Explanation explain(const PagedAttentionParams& params) {
  core::validate(name_of(params), params, Depth::kShapes);
  return on_cpu(params.device) ? cpu::explain(params) : cuda::explain(params);
}

Explanation explain(const MergeParams& params) {
  core::validate("merge_attention_states", params, Depth::kShapes);
  return on_cpu(params.device) ? cpu::explain(params) : cuda::explain(params);
}

}  // namespace dlattn
