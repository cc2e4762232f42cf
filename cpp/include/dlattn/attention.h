// Attention: dense, ragged and paged.
//
//   out = softmax(scale q k^T + mask) v
//
// Every function checks its parameters first (InvalidArgument), then picks a kernel (Unsupported if none has every option
// asked for, NotCompiled if the device's backend was not built). A CUDA launch never allocates and never synchronises; on
// the CPU the result is there on return.
#pragma once

#include <cstddef>
#include <string>

#include "dlattn/export.h"
#include "dlattn/params.h"

namespace dlattn {

// Which function a question of explain() or attn_workspace_size() is about; kAuto is attention().
enum class AttentionOp : uint8_t { kAuto, kPrefill, kDecode };

// Picks decode or prefill by seqlen_q.
DLATTN_EXPORT void attention(const AttentionParams& params, Stream stream = nullptr);

// Many queries against contiguous keys and values.
DLATTN_EXPORT void attn_prefill(const AttentionParams& params, Stream stream = nullptr);

// Few queries (usually one) against a contiguous cache, split over the keys.
DLATTN_EXPORT void attn_decode(const AttentionParams& params, Stream stream = nullptr);

// A ragged batch of packed tokens.
DLATTN_EXPORT void attn_varlen(const VarlenAttentionParams& params, Stream stream = nullptr);

// Few queries of each sequence against a paged cache; cu_seqlens_q is empty.
DLATTN_EXPORT void attn_paged_decode(const PagedAttentionParams& params, Stream stream = nullptr);

// Ragged queries (chunked prefill, speculative tokens) against a paged cache; cu_seqlens_q is set.
DLATTN_EXPORT void attn_paged_prefill(const PagedAttentionParams& params, Stream stream = nullptr);

// Combine partial results over disjoint keys. On CUDA more than 256 states take several launches, each of which rounds out to
// its dtype.
DLATTN_EXPORT void merge_attention_states(const MergeParams& params, Stream stream = nullptr);

// Bytes of workspace that the call needs, on its device; 0 on the CPU. Pointers and contents of arrays do not matter.
DLATTN_EXPORT size_t attn_workspace_size(const AttentionParams& params, AttentionOp op = AttentionOp::kAuto);
DLATTN_EXPORT size_t attn_workspace_size(const VarlenAttentionParams& params);
DLATTN_EXPORT size_t attn_workspace_size(const PagedAttentionParams& params);

// Every check of the call, values and memory included, as the call makes them; runs nothing. A null out or lse is one that is
// made later, and is not checked. For CUDA: everything but the values.
DLATTN_EXPORT void validate(const AttentionParams& params, AttentionOp op = AttentionOp::kAuto);
DLATTN_EXPORT void validate(const VarlenAttentionParams& params);
DLATTN_EXPORT void validate(const PagedAttentionParams& params);
DLATTN_EXPORT void validate(const MergeParams& params);

// What a call would run.
struct Explanation {
  bool supported = false;
  std::string backend;  // "cpu" or "cuda"
  std::string kernel;   // the kernel's name, e.g. "attention_decode_cpu_avx2_bf16"; empty if not supported
  std::string reason;   // why this one, or why none
};

// Which kernel a call would run and why; runs nothing and throws only InvalidArgument. It looks at shapes, dtypes and
// options (on the CPU at cu_seqlens_q, if it is there, to name the kernel), not at other values or memory: validate() does.
DLATTN_EXPORT Explanation explain(const AttentionParams& params, AttentionOp op = AttentionOp::kAuto);
DLATTN_EXPORT Explanation explain(const VarlenAttentionParams& params);
DLATTN_EXPORT Explanation explain(const PagedAttentionParams& params);
DLATTN_EXPORT Explanation explain(const MergeParams& params);

}  // namespace dlattn
