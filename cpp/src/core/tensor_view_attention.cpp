// AttentionTensors and merge states → parameters.
#include "core/tensor_check.h"

namespace dlattn {
namespace {

using core::contiguous_heads;
using core::heads_shape;
using core::heads_view;
using core::HeadsView;
using core::TensorCheck;

// An input with the rank, dtype and device that are wanted.
HeadsView heads_input(const TensorCheck& check, const char* name, const TensorView& tensor, const TensorView& q,
                      Layout layout, bool packed) {
  check.ndim(name, tensor, packed ? 3 : 4, heads_shape(layout, packed));
  if (&tensor == &q) {
    check.float_dtype(name, tensor);
  } else {
    check.same_dtype(name, tensor, q.dtype, "q.dtype");
    check.device(name, tensor, q.device, "q.device");
  }
  check.last_stride(name, tensor);
  check.memory(name, tensor);
  return heads_view(tensor, layout);
}

// out, given or to be made contiguous.
HeadsView heads_output(const TensorCheck& check, const TensorView& out, const TensorView& q, const HeadsView& want,
                       Layout layout, bool packed) {
  if (!out.given()) return contiguous_heads(want.batch, want.seq, want.heads, want.dim, layout, packed);
  check.ndim("out", out, packed ? 3 : 4, heads_shape(layout, packed));
  check.same_dtype("out", out, q.dtype, "q.dtype");
  check.device("out", out, q.device, "q.device");
  const HeadsView got = heads_view(out, layout);
  if (!packed) check.axis("out", "batch_size", got.batch, want.batch, "q.batch_size");
  check.axis("out", packed ? "total_q" : "seqlen_q", got.seq, want.seq, packed ? "q.total_q" : "q.seqlen_q");
  check.axis("out", "num_heads", got.heads, want.heads, "q.num_heads");
  check.axis("out", "head_dim_v", got.dim, want.dim, "v.head_dim_v");
  check.last_stride("out", out);
  check.memory("out", out, /*written=*/true);
  return got;
}

struct LseStrides {
  int64_t batch, head, seq;
};

// [batch, heads, len]; packed: [heads, tokens].
LseStrides lse_strides(const TensorCheck& check, const char* name, const TensorView& lse, const TensorView& q,
                       const HeadsView& shape, bool packed, bool written) {
  if (!lse.given()) return {packed ? 0 : shape.heads * shape.seq, shape.seq, 1};
  check.ndim(name, lse, packed ? 2 : 3, packed ? "[heads, tokens]" : "[batch, heads, len]");
  check.same_dtype(name, lse, DType::kFloat32, "lse is float32");
  check.device(name, lse, q.device, "q.device");
  const int first = packed ? 0 : 1;
  if (!packed) check.axis(name, "batch_size", lse.shape[0], shape.batch, "q.batch_size");
  check.axis(name, "num_heads", lse.shape[first], shape.heads, "q.num_heads");
  check.axis(name, packed ? "total_q" : "seqlen_q", lse.shape[first + 1], shape.seq,
             packed ? "q.total_q" : "q.seqlen_q");
  check.memory(name, lse, written);
  return {packed ? 0 : lse.strides[0], lse.strides[first], lse.strides[first + 1]};
}

// Masks of ragged calls only need to cover the longest sequence; that is checked with the values.
AttentionMask mask_view(const TensorCheck& check, const TensorView& t, const HeadsView& q, int64_t batch_size,
                        int64_t seqlen_k, bool ragged, Device device) {
  if (!t.given()) return {};
  if (t.ndim < 2 || t.ndim > 4) {
    check.check().fail("mask.ndim", std::to_string(t.ndim), "2, 3 or 4",
                       "[batch, len_k], [batch, len_q, len_k] or [batch, heads, len_q, len_k]");
  }
  if (t.dtype != DType::kBool && !core::is_float(t.dtype)) {
    check.check().fail("mask.dtype", name_of(t.dtype), "bool, float32, float16 or bfloat16");
  }
  check.device("mask", t, device, "q.device");
  check.memory("mask", t);
  const int n = t.ndim;
  AttentionMask mask;
  mask.data = t.data;
  mask.dtype = t.dtype;
  mask.batch_size = t.shape[0];
  mask.stride_batch = t.strides[0];
  if (mask.batch_size != 1) check.axis("mask", "batch_size", mask.batch_size, batch_size, "q.batch_size, or 1");
  if (n == 4) {
    mask.num_heads = t.shape[1];
    mask.stride_head = t.strides[1];
    if (mask.num_heads != 1) check.axis("mask", "num_heads", mask.num_heads, q.heads, "q.num_heads, or 1");
  }
  mask.seqlen_q = n == 2 ? q.seq : t.shape[n - 2];
  mask.stride_seq_q = n == 2 ? 0 : t.strides[n - 2];
  mask.seqlen_k = t.shape[n - 1];
  mask.stride_seq_k = t.strides[n - 1];
  if (!ragged) {
    check.axis("mask", "seqlen_q", mask.seqlen_q, q.seq, "q.seqlen_q");
    check.axis("mask", "seqlen_k", mask.seqlen_k, seqlen_k, "k.seqlen_k");
  }
  return mask;
}

AttentionOptions options_of(const TensorCheck& check, const AttentionTensors& t, const HeadsView& q, int64_t batch_size,
                            int64_t seqlen_k, bool ragged) {
  const Device device = t.q.device;
  AttentionOptions options;
  options.mask = mask_view(check, t.mask, q, batch_size, seqlen_k, ragged, device);
  if (t.sinks.given()) {
    check.ndim("sinks", t.sinks, 1, "[heads]");
    options.sinks = check.per_head("sinks", t.sinks, q.heads, device);
  }
  if (t.alibi_slopes.given()) {
    if (t.alibi_slopes.ndim == 2) {
      check.axis("alibi_slopes", "batch_size", t.alibi_slopes.shape[0], batch_size, "q.batch_size");
      options.alibi_stride_batch = t.alibi_slopes.strides[0];
    } else {
      check.ndim("alibi_slopes", t.alibi_slopes, 1, "[heads], or [batch, heads]");
    }
    options.alibi_slopes = check.per_head("alibi_slopes", t.alibi_slopes, q.heads, device);
  }
  return options;
}

// k against q, v against k: the sizes that all of them share.
void check_keys(const TensorCheck& check, const char* k_name, const char* v_name, const HeadsView& q,
                const HeadsView& k, const HeadsView& v) {
  check.axis(k_name, "head_dim", k.dim, q.dim, "q.head_dim");
  if (v.heads != k.heads) {
    check.axis(v_name, "num_kv_heads", v.heads, k.heads, (std::string(k_name) + ".num_kv_heads").c_str());
  }
}

// lse of attention has a contiguous last axis; one of size 1 has no stride to speak of.
void check_lse_contiguous(const TensorCheck& check, const TensorView& lse) {
  if (lse.given()) check.last_stride("lse", lse);
}

void refuse(const TensorCheck& check, const char* name, const TensorView& tensor) {
  if (tensor.given()) check.check().fail(name, "given", "none", "this operation has no such argument");
}

// Fields that the three attention structs have in common.
template <typename Params>
void set_common(Params& p, const AttentionTensors& t, const HeadsView& q, const HeadsView& k, const HeadsView& v) {
  p.device = t.q.device;
  p.dtype = t.q.dtype;
  p.num_heads = q.heads;
  p.num_kv_heads = k.heads;
  p.head_dim = q.dim;
  p.head_dim_v = v.dim;
  p.q = t.q.data;
  p.out = t.out.given() ? t.out.data : nullptr;
  p.lse = t.lse.given() ? static_cast<float*>(t.lse.data) : nullptr;
  p.q_stride_head = q.stride_head;
  p.k_stride_head = k.stride_head;
  p.v_stride_head = v.stride_head;
}

}  // namespace

AttentionParams make_attention_params(const char* op, const AttentionTensors& t) {
  const TensorCheck check(op);
  const HeadsView q = heads_input(check, "q", t.q, t.q, t.layout, false);
  const HeadsView k = heads_input(check, "k", t.k, t.q, t.layout, false);
  const HeadsView v = heads_input(check, "v", t.v, t.q, t.layout, false);
  check.axis("k", "batch_size", k.batch, q.batch, "q.batch_size");
  check.axis("v", "batch_size", v.batch, q.batch, "q.batch_size");
  check.axis("v", "seqlen_k", v.seq, k.seq, "k.seqlen_k");
  check_keys(check, "k", "v", q, k, v);
  refuse(check, "cu_seqlens_q", t.cu_seqlens_q);
  refuse(check, "cu_seqlens_k", t.cu_seqlens_k);
  refuse(check, "page_table", t.page_table);
  const HeadsView out = heads_output(check, t.out, t.q, {q.batch, q.seq, q.heads, v.dim, 0, 0, 0}, t.layout, false);
  const LseStrides lse = lse_strides(check, "lse", t.lse, t.q, q, false, true);
  check_lse_contiguous(check, t.lse);

  AttentionParams p;
  set_common(p, t, q, k, v);
  p.k = t.k.data;
  p.v = t.v.data;
  p.batch_size = q.batch;
  p.seqlen_q = q.seq;
  p.seqlen_k = k.seq;
  p.q_stride_batch = q.stride_batch, p.q_stride_seq = q.stride_seq;
  p.k_stride_batch = k.stride_batch, p.k_stride_seq = k.stride_seq;
  p.v_stride_batch = v.stride_batch, p.v_stride_seq = v.stride_seq;
  p.out_stride_batch = out.stride_batch, p.out_stride_seq = out.stride_seq, p.out_stride_head = out.stride_head;
  p.lse_stride_batch = lse.batch, p.lse_stride_head = lse.head;
  if (t.seqlens_k.given()) {
    p.seqlens_k = check.index_vector("seqlens_k", t.seqlens_k, q.batch, "q.batch_size", t.q.device);
  }
  p.options = options_of(check, t, q, q.batch, k.seq, /*ragged=*/false);
  return p;
}

VarlenAttentionParams make_varlen_params(const char* op, const AttentionTensors& t) {
  const TensorCheck check(op);
  const HeadsView q = heads_input(check, "q", t.q, t.q, t.layout, true);
  const HeadsView k = heads_input(check, "k", t.k, t.q, t.layout, true);
  const HeadsView v = heads_input(check, "v", t.v, t.q, t.layout, true);
  check.axis("v", "total_k", v.seq, k.seq, "k.total_k");
  check_keys(check, "k", "v", q, k, v);
  refuse(check, "seqlens_k", t.seqlens_k);
  refuse(check, "page_table", t.page_table);
  const HeadsView out = heads_output(check, t.out, t.q, {1, q.seq, q.heads, v.dim, 0, 0, 0}, t.layout, true);
  const LseStrides lse = lse_strides(check, "lse", t.lse, t.q, q, true, true);
  check_lse_contiguous(check, t.lse);

  VarlenAttentionParams p;
  set_common(p, t, q, k, v);
  p.k = t.k.data;
  p.v = t.v.data;
  p.total_q = q.seq;
  p.total_k = k.seq;
  p.q_stride_token = q.stride_seq;
  p.k_stride_token = k.stride_seq;
  p.v_stride_token = v.stride_seq;
  p.out_stride_token = out.stride_seq, p.out_stride_head = out.stride_head;
  p.lse_stride_head = lse.head;
  check.ndim("cu_seqlens_q", t.cu_seqlens_q, 1, "[batch + 1]");
  check.check().at_least("cu_seqlens_q.shape[0]", t.cu_seqlens_q.shape[0], 1, "batch_size + 1");
  const int64_t entries = t.cu_seqlens_q.shape[0];
  p.batch_size = entries - 1;
  p.cu_seqlens_q = check.index_vector("cu_seqlens_q", t.cu_seqlens_q, entries, "batch_size + 1", t.q.device);
  check.given("cu_seqlens_k", t.cu_seqlens_k, "[batch + 1]");
  p.cu_seqlens_k = check.index_vector("cu_seqlens_k", t.cu_seqlens_k, entries, "cu_seqlens_q.shape[0]", t.q.device);
  p.options = options_of(check, t, q, p.batch_size, -1, /*ragged=*/true);
  return p;
}

PagedAttentionParams make_paged_params(const char* op, const AttentionTensors& t) {
  const TensorCheck check(op);
  const bool prefill = t.cu_seqlens_q.given();
  const HeadsView q = heads_input(check, "q", t.q, t.q, t.layout, prefill);
  const HeadsView k = heads_input(check, "k_cache", t.k, t.q, t.layout, false);
  const HeadsView v = heads_input(check, "v_cache", t.v, t.q, t.layout, false);
  check.axis("v_cache", "num_pages", v.batch, k.batch, "k_cache.num_pages");
  check.axis("v_cache", "page_size", v.seq, k.seq, "k_cache.page_size");
  check_keys(check, "k_cache", "v_cache", q, k, v);
  refuse(check, "cu_seqlens_k", t.cu_seqlens_k);
  const HeadsView out = heads_output(check, t.out, t.q, {q.batch, q.seq, q.heads, v.dim, 0, 0, 0}, t.layout, prefill);
  const LseStrides lse = lse_strides(check, "lse", t.lse, t.q, q, prefill, true);
  check_lse_contiguous(check, t.lse);

  PagedAttentionParams p;
  set_common(p, t, q, k, v);
  p.k_cache = t.k.data;
  p.v_cache = t.v.data;
  p.num_pages = k.batch;
  p.page_size = k.seq;
  check.ndim("page_table", t.page_table, 2, "[batch, max_pages]");
  check.index_dtype("page_table", t.page_table);
  check.device("page_table", t.page_table, t.q.device, "q.device");
  check.last_stride("page_table", t.page_table);
  check.memory("page_table", t.page_table);
  p.page_table = {t.page_table.data, t.page_table.dtype};
  p.max_pages = t.page_table.shape[1];
  p.page_table_stride_batch = t.page_table.strides[0];
  if (prefill) {
    check.ndim("cu_seqlens_q", t.cu_seqlens_q, 1, "[batch + 1]");
    check.check().at_least("cu_seqlens_q.shape[0]", t.cu_seqlens_q.shape[0], 1, "batch_size + 1");
    p.batch_size = t.cu_seqlens_q.shape[0] - 1;
    p.total_q = q.seq;
    p.cu_seqlens_q = check.index_vector("cu_seqlens_q", t.cu_seqlens_q, p.batch_size + 1, "batch_size + 1", t.q.device);
  } else {
    p.batch_size = q.batch;
    p.seqlen_q = q.seq;
  }
  const char* batch_name = prefill ? "cu_seqlens_q.shape[0] - 1" : "q.batch_size";
  check.axis("page_table", "batch_size", t.page_table.shape[0], p.batch_size, batch_name);
  check.given("seqlens_k", t.seqlens_k, "[batch]");
  p.seqlens_k = check.index_vector("seqlens_k", t.seqlens_k, p.batch_size, batch_name, t.q.device);
  p.q_stride_batch = q.stride_batch, p.q_stride_seq = q.stride_seq;
  p.k_stride_page = k.stride_batch, p.k_stride_seq = k.stride_seq;
  p.v_stride_page = v.stride_batch, p.v_stride_seq = v.stride_seq;
  p.out_stride_batch = out.stride_batch, p.out_stride_seq = out.stride_seq, p.out_stride_head = out.stride_head;
  p.lse_stride_batch = lse.batch, p.lse_stride_head = lse.head;
  p.options = options_of(check, t, q, p.batch_size, -1, /*ragged=*/true);
  return p;
}

MergeParams make_merge_params(const char* op, const StateTensors* inputs, int64_t num_states,
                              const StateTensors& output, Layout layout, AttentionState* states) {
  const TensorCheck check(op);
  check.check().at_least("outs.num_states", num_states, 1);
  const TensorView& first = inputs[0].out;
  const bool packed = first.ndim == 3;
  HeadsView shape{};
  for (int64_t i = 0; i < num_states; ++i) {
    const std::string out_name = "outs[" + std::to_string(i) + "]", lse_name = "lses[" + std::to_string(i) + "]";
    const char* name = out_name.c_str();
    const HeadsView out = heads_input(check, name, inputs[i].out, first, layout, packed);
    if (i == 0) shape = out;
    check.axis(name, "batch_size", out.batch, shape.batch, "outs[0].batch_size");
    check.axis(name, "seqlen_q", out.seq, shape.seq, "outs[0].seqlen_q");
    check.axis(name, "num_heads", out.heads, shape.heads, "outs[0].num_heads");
    check.axis(name, "head_dim_v", out.dim, shape.dim, "outs[0].head_dim_v");
    check.given(lse_name.c_str(), inputs[i].lse, packed ? "[heads, tokens]" : "[batch, heads, len]");
    const LseStrides lse = lse_strides(check, lse_name.c_str(), inputs[i].lse, first, shape, packed, false);
    states[i] = {inputs[i].out.data, static_cast<const float*>(inputs[i].lse.data),
                 out.stride_batch,   out.stride_seq,
                 out.stride_head,    lse.batch,
                 lse.head,           lse.seq};
  }
  const HeadsView out = heads_output(check, output.out, first, shape, layout, packed);
  const LseStrides lse = lse_strides(check, "lse", output.lse, first, shape, packed, true);

  MergeParams p;
  p.device = first.device;
  p.dtype = first.dtype;
  p.batch_size = shape.batch;
  p.seqlen_q = shape.seq;
  p.num_heads = shape.heads;
  p.head_dim_v = shape.dim;
  p.num_states = num_states;
  p.states = states;
  p.out = output.out.given() ? output.out.data : nullptr;
  p.lse = output.lse.given() ? static_cast<float*>(output.lse.data) : nullptr;
  p.out_stride_batch = out.stride_batch, p.out_stride_seq = out.stride_seq, p.out_stride_head = out.stride_head;
  p.lse_stride_batch = lse.batch, p.lse_stride_head = lse.head, p.lse_stride_seq = lse.seq;
  return p;
}

}  // namespace dlattn
