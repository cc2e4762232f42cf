// From tensors with shapes to parameters: the bridge for DLPack importers, bindings and FFI handlers.
//
// A view owns nothing. Each make_*_params() checks that ranks, shapes, dtypes and devices agree, resolves the layout and
// throws InvalidArgument with the name of the argument that does not fit, e.g.
//   "attn_prefill: k.head_dim is 96, expected 128 (= q.head_dim)".
#pragma once

#include <cstdint>

#include "dlattn/export.h"
#include "dlattn/params.h"

namespace dlattn {

constexpr int kMaxDims = 6;

struct TensorView {
  void* data = nullptr;
  DType dtype = DType::kFloat32;
  Device device;
  int32_t ndim = -1;       // -1: no tensor (the argument was not given)
  bool read_only = false;  // writing is refused
  int64_t shape[kMaxDims] = {};
  int64_t strides[kMaxDims] = {};  // elements

  bool given() const { return ndim >= 0; }
  int64_t numel() const {
    int64_t n = 1;
    for (int i = 0; i < ndim; ++i) n *= shape[i];
    return n;
  }
};

// blhd: q [batch, len, heads, dim], caches [pages, page_size, heads, dim].
// bhld: q [batch, heads, len, dim], caches [pages, heads, page_size, dim]. Packed tokens are [tokens, heads, dim] in both.
enum class Layout : uint8_t { kBLHD, kBHLD };

// Array-valued options; the scalar ones are set on the result's `options`.
struct AttentionTensors {
  TensorView q, k, v;   // dense or packed; k, v also stand for k_cache, v_cache
  TensorView out, lse;  // not given: left null, strides those of a contiguous result
  TensorView mask;      // [batch, len_k], [batch, len_q, len_k] or [batch, heads, len_q, len_k]; batch, heads may be 1
  TensorView sinks;     // [heads]
  TensorView alibi_slopes;  // [heads] or [batch, heads]
  TensorView seqlens_k;     // [batch]
  TensorView cu_seqlens_q;  // [batch + 1]
  TensorView cu_seqlens_k;  // [batch + 1]
  TensorView page_table;    // [batch, max_pages]
  Layout layout = Layout::kBLHD;
};

// `op` is the operation's name as messages show it.
DLATTN_EXPORT AttentionParams make_attention_params(const char* op, const AttentionTensors& tensors);
DLATTN_EXPORT VarlenAttentionParams make_varlen_params(const char* op, const AttentionTensors& tensors);
DLATTN_EXPORT PagedAttentionParams make_paged_params(const char* op, const AttentionTensors& tensors);

struct RotaryTensors {
  TensorView q, k;          // [batch, len, heads, dim] (or bhld), or packed [tokens, heads, dim]; one may be missing
  TensorView q_out, k_out;  // not given: left null, strides those of a contiguous result
  TensorView cos, sin;      // [max_position, rotary_dim / 2], or gathered [batch, len, rotary_dim / 2]
  TensorView positions;     // [batch, len], or [tokens] with tokens = batch * len; may be missing
  Layout layout = Layout::kBLHD;
};

DLATTN_EXPORT RotaryParams make_rotary_params(const char* op, const RotaryTensors& tensors);

struct AppendTensors {
  TensorView k, v;              // [batch, len, heads, dim] (or bhld), or packed [tokens, heads, dim]
  TensorView k_cache, v_cache;  // [pages, page_size, heads, dim] (or bhld)
  TensorView slot_mapping;      // [batch, len], or [tokens] with tokens = batch * len
  Layout layout = Layout::kBLHD;
};

DLATTN_EXPORT AppendKVParams make_append_params(const char* op, const AppendTensors& tensors);

// rotary.k is the new key; append.k is ignored.
DLATTN_EXPORT RotaryAppendKVParams make_rotary_append_params(const char* op, const RotaryTensors& rotary,
                                                             const AppendTensors& append);

struct StateTensors {
  TensorView out;  // [batch, len, heads, dim_v] (or bhld), or packed [tokens, heads, dim_v]
  TensorView lse;  // [batch, heads, len]; packed: [heads, tokens]
};

// Fills `states` (num_states of them, kept by the caller) and points the result at it.
DLATTN_EXPORT MergeParams make_merge_params(const char* op, const StateTensors* inputs, int64_t num_states,
                                            const StateTensors& output, Layout layout, AttentionState* states);

}  // namespace dlattn
