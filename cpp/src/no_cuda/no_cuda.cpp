// The CUDA backend of a build without it: every call says how to build it.
#include "backend.h"
#include "dlattn/error.h"

namespace dlattn::cuda {
namespace {

constexpr char kReason[] =
    "the CUDA backend was not built; install the CUDA toolkit (nvcc) and configure with -DDLATTN_CUDA=ON "
    "(pip install . --config-settings=cmake.define.DLATTN_CUDA=ON)";

[[noreturn]] void not_compiled(const char* op) { throw NotCompiled(std::string(op) + ": " + kReason); }

const char* op_name(AttentionOp op) {
  switch (op) {
    case AttentionOp::kPrefill:
      return "attn_prefill";
    case AttentionOp::kDecode:
      return "attn_decode";
    case AttentionOp::kAuto:
      break;
  }
  return "attention";
}

const char* op_name(const PagedAttentionParams& params) {
  return params.cu_seqlens_q.data ? "attn_paged_prefill" : "attn_paged_decode";
}

Explanation unsupported() { return {false, "cuda", "", kReason}; }

}  // namespace

bool compiled() { return false; }
std::vector<std::string> families() { return {}; }
std::vector<std::string> devices() { return {}; }
std::vector<std::string> architectures() { return {}; }
std::vector<std::string> kernels() { return {}; }
std::string runtime_version() { return {}; }
std::string driver_version() { return {}; }

int device_of(const void*) { not_compiled("cuda_device_of"); }
void order(int, Stream, Stream) { not_compiled("cuda_order_streams"); }

void attention(const AttentionParams&, AttentionOp op, Stream) { not_compiled(op_name(op)); }
void attention(const VarlenAttentionParams&, Stream) { not_compiled("attn_varlen"); }
void attention(const PagedAttentionParams& params, Stream) { not_compiled(op_name(params)); }
void rotary(const RotaryParams&, Stream) { not_compiled("rotary_embedding"); }
void append_kv(const AppendKVParams&, Stream) { not_compiled("append_kv"); }
void rotary_append_kv(const RotaryAppendKVParams&, Stream) { not_compiled("rotary_append_kv"); }
void merge(const MergeParams&, Stream) { not_compiled("merge_attention_states"); }

size_t workspace_size(const AttentionParams&, AttentionOp) { not_compiled("attn_workspace_size"); }
size_t workspace_size(const VarlenAttentionParams&) { not_compiled("attn_workspace_size"); }
size_t workspace_size(const PagedAttentionParams&) { not_compiled("attn_workspace_size"); }

Explanation explain(const AttentionParams&, AttentionOp) { return unsupported(); }
Explanation explain(const VarlenAttentionParams&) { return unsupported(); }
Explanation explain(const PagedAttentionParams&) { return unsupported(); }
Explanation explain(const RotaryParams&) { return unsupported(); }
Explanation explain(const AppendKVParams&) { return unsupported(); }
Explanation explain(const RotaryAppendKVParams&) { return unsupported(); }
Explanation explain(const MergeParams&) { return unsupported(); }

}  // namespace dlattn::cuda
