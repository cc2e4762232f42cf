// Parameters of every operation: plain structs of pointers, sizes and strides.
//
// Conventions, the same for all:
//   * Strides are int64, in elements, free on every axis (zero and negative too) but the last, which is contiguous;
//     only a mask has a free last stride. A stride of an axis of size 1 is never used.
//   * Sizes of 0 are legal; a pointer to a tensor without elements may be null.
//   * q, k, v, out and the caches have one dtype: float32, float16 or bfloat16. Scores, softmax and accumulation are float32.
//   * query head h reads kv head h / (num_heads / num_kv_heads).
//   * lse is the natural log of the sum of exponentials that the softmax divides by (sink included).
//   * A row with no visible key: out = 0, lse = -inf (with a sink: lse = sink).
//   * A score of -inf, from a mask or from the data, hides its key: it weighs nothing and its value does not matter.
//   * What a sequence's length, window, causality or mask makes invisible may hold anything, NaN included. On CUDA, a NaN or
//     infinity in the *value* of a key inside the length that a window, causality, a mask or a score of -inf hides may reach
//     the row (0 times NaN).
//   * Pointers are on `device`. Arrays of lengths, tables and positions too: a CUDA launch reads nothing back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

struct CUstream_st;  // CUDA's own name of a stream, so that no CUDA header is needed here

namespace dlattn {

using Stream = CUstream_st*;  // null: the legacy default stream; ignored on the CPU

enum class DType : uint8_t { kFloat32, kFloat16, kBFloat16, kBool, kInt32, kInt64 };

enum class DeviceType : uint8_t { kCPU, kCUDA };

struct Device {
  DeviceType type = DeviceType::kCPU;
  int32_t index = 0;  // CUDA ordinal; 0 on the CPU
};

// An int32 or int64 array; what it counts and its shape stand where it is used. Empty: data == nullptr.
struct IndexArray {
  const void* data = nullptr;
  DType dtype = DType::kInt32;
};

// A float32, float16 or bfloat16 array of per-head constants. Empty: data == nullptr.
struct FloatArray {
  const void* data = nullptr;
  DType dtype = DType::kFloat32;
};

// Which scores count, or what is added to them. Empty: data == nullptr.
//   kBool: True = keep. Floating: added to the scores, after scale and softcap (-inf hides the key).
// Rows and columns are a sequence's own: entry (i, j) is its query i and its key j, also in ragged and paged calls.
struct AttentionMask {
  const void* data = nullptr;  // [batch_size or 1, num_heads or 1, seqlen_q, seqlen_k]
  DType dtype = DType::kBool;
  int64_t batch_size = 1;  // 1: the same for every sequence
  int64_t num_heads = 1;   // 1: the same for every head
  int64_t seqlen_q = 0;    // dense: = q's; ragged: >= the longest. A [batch, seqlen_k] mask has stride_seq_q 0
  int64_t seqlen_k = 0;    // dense: = k's; ragged and paged: >= the longest
  int64_t stride_batch = 0, stride_head = 0, stride_seq_q = 0, stride_seq_k = 1;  // elements; any
};

// The options that all attention operations share.
struct AttentionOptions {
  std::optional<float> scale;  // of q k^T; absent: 1 / sqrt(head_dim)
  float softcap = 0.0f;        // c > 0: s = c tanh(s / c), after scale, before masking; 0: off
  bool is_causal = false;      // bottom-right: key j is visible to query i iff j <= i + len_k - len_q
  int64_t window_left = -1;    // keys j >= i + len_k - len_q - window_left; -1: unlimited
  int64_t window_right = -1;   // keys j <= i + len_k - len_q + window_right; -1: unlimited
  AttentionMask mask;
  FloatArray sinks;                // [num_heads]: one more logit in the denominator, with no value
  FloatArray alibi_slopes;         // [num_heads] or [batch_size, num_heads]: adds -slope |i + len_k - len_q - j|
  int64_t alibi_stride_batch = 0;  // 0: the same slopes for every sequence
};

// Dense attention: attention(), attn_prefill(), attn_decode().
struct AttentionParams {
  Device device;
  DType dtype = DType::kFloat32;

  int64_t batch_size = 0, seqlen_q = 0, seqlen_k = 0;
  int64_t num_heads = 0, num_kv_heads = 0;  // num_heads % num_kv_heads == 0
  int64_t head_dim = 0, head_dim_v = 0;     // 1..256 each

  const void* q = nullptr;  // [batch_size, seqlen_q, num_heads, head_dim]
  const void* k = nullptr;  // [batch_size, seqlen_k, num_kv_heads, head_dim]
  const void* v = nullptr;  // [batch_size, seqlen_k, num_kv_heads, head_dim_v]
  void* out = nullptr;      // [batch_size, seqlen_q, num_heads, head_dim_v]
  float* lse = nullptr;     // [batch_size, num_heads, seqlen_q], last stride 1; may be null

  int64_t q_stride_batch = 0, q_stride_seq = 0, q_stride_head = 0;
  int64_t k_stride_batch = 0, k_stride_seq = 0, k_stride_head = 0;
  int64_t v_stride_batch = 0, v_stride_seq = 0, v_stride_head = 0;
  int64_t out_stride_batch = 0, out_stride_seq = 0, out_stride_head = 0;
  int64_t lse_stride_batch = 0, lse_stride_head = 0;

  IndexArray seqlens_k;  // [batch_size], each 0..seqlen_k: the keys that count; may be empty (all of them)

  AttentionOptions options;

  // attn_workspace_size(params) bytes on `device`, 256-byte aligned; may be null if that is 0
  void* workspace = nullptr;
  size_t workspace_bytes = 0;
};

// A ragged batch of packed tokens: attn_varlen(). Sequence b owns the queries cu_seqlens_q[b] .. cu_seqlens_q[b + 1] - 1
// and the keys cu_seqlens_k[b] .. cu_seqlens_k[b + 1] - 1. Rows outside cu_seqlens_q are not written.
struct VarlenAttentionParams {
  Device device;
  DType dtype = DType::kFloat32;

  int64_t batch_size = 0, total_q = 0, total_k = 0;
  int64_t num_heads = 0, num_kv_heads = 0;
  int64_t head_dim = 0, head_dim_v = 0;

  const void* q = nullptr;  // [total_q, num_heads, head_dim]
  const void* k = nullptr;  // [total_k, num_kv_heads, head_dim]
  const void* v = nullptr;  // [total_k, num_kv_heads, head_dim_v]
  void* out = nullptr;      // [total_q, num_heads, head_dim_v]
  float* lse = nullptr;     // [num_heads, total_q], last stride 1; may be null

  int64_t q_stride_token = 0, q_stride_head = 0;
  int64_t k_stride_token = 0, k_stride_head = 0;
  int64_t v_stride_token = 0, v_stride_head = 0;
  int64_t out_stride_token = 0, out_stride_head = 0;
  int64_t lse_stride_head = 0;

  IndexArray cu_seqlens_q;  // [batch_size + 1], non-decreasing, within 0..total_q
  IndexArray cu_seqlens_k;  // [batch_size + 1], non-decreasing, within 0..total_k

  AttentionOptions options;

  void* workspace = nullptr;
  size_t workspace_bytes = 0;
};

// Attention against a paged cache: attn_paged_decode(), attn_paged_prefill().
// Key j of sequence b lies in page page_table[b, j / page_size], row j % page_size. Table entries past
// seqlens_k[b] are never read, and neither are pages that a window hides.
struct PagedAttentionParams {
  Device device;
  DType dtype = DType::kFloat32;

  int64_t batch_size = 0;
  int64_t seqlen_q = 0;  // decode: queries of each sequence; 0 for prefill
  int64_t total_q = 0;   // prefill: packed queries of all sequences; 0 for decode
  int64_t num_heads = 0, num_kv_heads = 0;
  int64_t head_dim = 0, head_dim_v = 0;
  int64_t num_pages = 0, page_size = 0, max_pages = 0;  // page_size >= 1

  // decode: [batch_size, seqlen_q, num_heads, head_dim]; prefill: [total_q, num_heads, head_dim]
  const void* q = nullptr;
  const void* k_cache = nullptr;  // [num_pages, page_size, num_kv_heads, head_dim]
  const void* v_cache = nullptr;  // [num_pages, page_size, num_kv_heads, head_dim_v]
  void* out = nullptr;            // as q, with head_dim_v
  float* lse = nullptr;  // decode: [batch_size, num_heads, seqlen_q]; prefill: [num_heads, total_q]; may be null

  // prefill: stride_batch is unused, stride_seq steps from token to token
  int64_t q_stride_batch = 0, q_stride_seq = 0, q_stride_head = 0;
  int64_t k_stride_page = 0, k_stride_seq = 0, k_stride_head = 0;  // stride_seq: from a row of a page to the next
  int64_t v_stride_page = 0, v_stride_seq = 0, v_stride_head = 0;
  int64_t out_stride_batch = 0, out_stride_seq = 0, out_stride_head = 0;
  int64_t lse_stride_batch = 0, lse_stride_head = 0;

  IndexArray page_table;  // [batch_size, max_pages], last stride 1
  int64_t page_table_stride_batch = 0;
  IndexArray seqlens_k;     // [batch_size], each 0..max_pages * page_size
  IndexArray cu_seqlens_q;  // [batch_size + 1]; empty for decode

  AttentionOptions options;

  void* workspace = nullptr;
  size_t workspace_bytes = 0;
};

// Rotary embedding of q and k. Pairs are (2i, 2i + 1) if interleaved, else (i, i + rotary_dim / 2):
//   x'[a] = x[a] cos[i] - x[b] sin[i],  x'[b] = x[b] cos[i] + x[a] sin[i]   (Su et al., RoFormer, arXiv:2104.09864, eq. 34)
// in float32, rounded once. Elements from rotary_dim on pass through. In place: q_out == q, k_out == k, same strides.
// Packed tokens [tokens, heads, head_dim] are batch_size 1, seqlen = tokens.
struct RotaryParams {
  Device device;
  DType dtype = DType::kFloat32;  // q, k and their outputs

  int64_t batch_size = 0, seqlen = 0;
  int64_t num_heads = 0, num_kv_heads = 0;
  int64_t head_dim = 0;      // 1..256
  int64_t rotary_dim = 0;    // even, 0..head_dim
  int64_t max_position = 0;  // rows of the table; unused if gathered

  const void* q = nullptr;  // [batch_size, seqlen, num_heads, head_dim]; may be null if num_heads is 0
  const void* k = nullptr;  // [batch_size, seqlen, num_kv_heads, head_dim]; may be null if num_kv_heads is 0
  void* q_out = nullptr;    // as q
  void* k_out = nullptr;    // as k

  int64_t q_stride_batch = 0, q_stride_seq = 0, q_stride_head = 0;
  int64_t k_stride_batch = 0, k_stride_seq = 0, k_stride_head = 0;
  int64_t q_out_stride_batch = 0, q_out_stride_seq = 0, q_out_stride_head = 0;
  int64_t k_out_stride_batch = 0, k_out_stride_seq = 0, k_out_stride_head = 0;

  const void* cos = nullptr;  // [max_position, rotary_dim / 2]; gathered: [batch_size, seqlen, rotary_dim / 2]
  const void* sin = nullptr;  // as cos
  DType table_dtype = DType::kFloat32;               // of cos and sin: float32, float16 or bfloat16
  bool gathered = false;                             // cos and sin hold one row per token already
  int64_t cos_stride_batch = 0, cos_stride_seq = 0;  // stride_batch: only if gathered
  int64_t sin_stride_batch = 0, sin_stride_seq = 0;

  IndexArray positions;  // [batch_size, seqlen], each 0..max_position - 1; empty: 0..seqlen - 1. CUDA: a position
                         // outside the table gives NaN rows; CPU: an error
  int64_t positions_stride_batch = 0, positions_stride_seq = 1;

  bool interleaved = false;
};

// Write new keys and values into a paged cache.
// Token t goes to page slot / page_size, row slot % page_size, where slot = slot_mapping[t]; slot -1 skips the token.
struct AppendKVParams {
  Device device;
  DType dtype = DType::kFloat32;

  int64_t batch_size = 0, seqlen = 0;  // tokens; packed tokens are batch_size 1
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0, head_dim_v = 0;
  int64_t num_pages = 0, page_size = 0;

  const void* k = nullptr;  // [batch_size, seqlen, num_kv_heads, head_dim]
  const void* v = nullptr;  // [batch_size, seqlen, num_kv_heads, head_dim_v]
  void* k_cache = nullptr;  // [num_pages, page_size, num_kv_heads, head_dim]
  void* v_cache = nullptr;  // [num_pages, page_size, num_kv_heads, head_dim_v]

  int64_t k_stride_batch = 0, k_stride_seq = 0, k_stride_head = 0;
  int64_t v_stride_batch = 0, v_stride_seq = 0, v_stride_head = 0;
  int64_t k_cache_stride_page = 0, k_cache_stride_seq = 0, k_cache_stride_head = 0;
  int64_t v_cache_stride_page = 0, v_cache_stride_seq = 0, v_cache_stride_head = 0;

  IndexArray slot_mapping;  // [batch_size, seqlen], each -1..num_pages * page_size - 1, no slot twice
  int64_t slot_mapping_stride_batch = 0, slot_mapping_stride_seq = 1;
};

// rotary_embedding and append_kv in one pass: q_out = rotated q; the rotated k and v go into the cache.
// rotary.k is the key to rotate; rotary.k_out may be null (the rotated key is kept in the cache only) and append.k is unused.
struct RotaryAppendKVParams {
  RotaryParams rotary;
  AppendKVParams append;
};

// One partial result of attention over part of the keys.
struct AttentionState {
  const void* out = nullptr;   // [batch_size, seqlen_q, num_heads, head_dim_v]
  const float* lse = nullptr;  // [batch_size, num_heads, seqlen_q]
  int64_t out_stride_batch = 0, out_stride_seq = 0, out_stride_head = 0;
  int64_t lse_stride_batch = 0, lse_stride_head = 0, lse_stride_seq = 1;
};

// Combine partial results over disjoint keys: lse = log sum_i exp(lse_i), out = sum_i exp(lse_i - lse) out_i.
// A state with lse = -inf adds nothing, whatever its out holds; all of them empty: out = 0, lse = -inf.
struct MergeParams {
  Device device;
  DType dtype = DType::kFloat32;  // of every out

  int64_t batch_size = 0, seqlen_q = 0, num_heads = 0, head_dim_v = 0;
  int64_t num_states = 0;                  // >= 1
  const AttentionState* states = nullptr;  // num_states of them, in host memory

  void* out = nullptr;   // [batch_size, seqlen_q, num_heads, head_dim_v]; may be states[i].out itself
  float* lse = nullptr;  // [batch_size, num_heads, seqlen_q]; may be null or states[i].lse itself
  int64_t out_stride_batch = 0, out_stride_seq = 0, out_stride_head = 0;
  int64_t lse_stride_batch = 0, lse_stride_head = 0, lse_stride_seq = 1;
};

}  // namespace dlattn
