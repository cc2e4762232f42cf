// RotaryTensors and AppendTensors → parameters.
#include "core/tensor_check.h"

namespace dlattn {
namespace {

using core::contiguous_heads;
using core::heads_shape;
using core::heads_view;
using core::HeadsView;
using core::TensorCheck;

// Tokens with heads, dense or packed; `like` (may be the tensor itself) gives rank, dtype and device.
HeadsView tokens_input(const TensorCheck& check, const char* name, const TensorView& tensor, const TensorView& like,
                       Layout layout, const char* like_name) {
  check.given(name, tensor, heads_shape(layout, false));
  if (&tensor == &like) {
    if (tensor.ndim != 3 && tensor.ndim != 4) {
      check.ndim(name, tensor, 4, (std::string(heads_shape(layout, false)) + ", or 3: [tokens, heads, dim]").c_str());
    }
    check.float_dtype(name, tensor);
  } else if (tensor.ndim != like.ndim || tensor.dtype != like.dtype || tensor.device.type != like.device.type ||
             tensor.device.index != like.device.index) {
    const std::string prefix = std::string(like_name) + ".";
    check.axis(name, "ndim", tensor.ndim, like.ndim, (prefix + "ndim").c_str());
    check.same_dtype(name, tensor, like.dtype, (prefix + "dtype").c_str());
    check.device(name, tensor, like.device, (prefix + "device").c_str());
  }
  check.last_stride(name, tensor);
  check.memory(name, tensor);
  return heads_view(tensor, layout);
}

void same_tokens(const TensorCheck& check, const char* name, const HeadsView& got, const HeadsView& want,
                 const char* want_name) {
  if (got.batch == want.batch && got.seq == want.seq) return;
  check.axis(name, "batch_size", got.batch, want.batch, (std::string(want_name) + ".batch_size").c_str());
  check.axis(name, "seqlen", got.seq, want.seq, (std::string(want_name) + ".seqlen").c_str());
}

HeadsView tokens_output(const TensorCheck& check, const char* name, const TensorView& out, const TensorView& in,
                        const HeadsView& want, Layout layout, const char* in_name) {
  if (!out.given()) {
    return contiguous_heads(want.batch, want.seq, want.heads, want.dim, layout, in.ndim == 3);
  }
  const HeadsView got = tokens_input(check, name, out, in, layout, in_name);
  same_tokens(check, name, got, want, in_name);
  check.axis(name, "num_heads", got.heads, want.heads, (std::string(in_name) + ".num_heads").c_str());
  check.axis(name, "head_dim", got.dim, want.dim, (std::string(in_name) + ".head_dim").c_str());
  check.memory(name, out, /*written=*/true);
  return got;
}

struct TokenIndex {
  IndexArray array;
  int64_t stride_batch, stride_seq;
};

// [batch, len], or one axis of batch * len tokens.
TokenIndex token_index(const TensorCheck& check, const char* name, const TensorView& t, const HeadsView& tokens,
                       Device device) {
  check.index_dtype(name, t);
  check.device(name, t, device, "q.device");
  check.memory(name, t);
  if (t.ndim == 1) {
    check.axis(name, "shape[0]", t.shape[0], tokens.batch * tokens.seq, "the number of tokens");
    return {{t.data, t.dtype}, tokens.seq * t.strides[0], t.strides[0]};
  }
  check.ndim(name, t, 2, "[batch, len], or 1: [tokens]");
  check.axis(name, "shape[0]", t.shape[0], tokens.batch, "batch_size");
  check.axis(name, "shape[1]", t.shape[1], tokens.seq, "seqlen");
  return {{t.data, t.dtype}, t.strides[0], t.strides[1]};
}

// cos and sin, alike: [max_position, rotary_dim / 2], or [batch, len, rotary_dim / 2].
void set_tables(const TensorCheck& check, RotaryParams& p, const TensorView& cos, const TensorView& sin,
                const HeadsView& tokens, Device device) {
  check.given("cos", cos, "[max_position, rotary_dim / 2]");
  check.given("sin", sin, "[max_position, rotary_dim / 2]");
  if (cos.ndim != 3) check.ndim("cos", cos, 2, "[max_position, rotary_dim / 2], or 3: [batch, len, rotary_dim / 2]");
  check.float_dtype("cos", cos);
  check.device("cos", cos, device, "q.device");
  check.axis("sin", "ndim", sin.ndim, cos.ndim, "cos.ndim");
  check.same_dtype("sin", sin, cos.dtype, "cos.dtype");
  check.device("sin", sin, device, "q.device");
  for (int i = 0; i < cos.ndim; ++i) {
    if (sin.shape[i] == cos.shape[i]) continue;
    const std::string axis = "shape[" + std::to_string(i) + "]";
    check.axis("sin", axis.c_str(), sin.shape[i], cos.shape[i], ("cos." + axis).c_str());
  }
  check.last_stride("cos", cos);
  check.last_stride("sin", sin);
  check.memory("cos", cos);
  check.memory("sin", sin);
  p.cos = cos.data;
  p.sin = sin.data;
  p.table_dtype = cos.dtype;
  p.gathered = cos.ndim == 3;
  const int seq = p.gathered ? 1 : 0;
  p.rotary_dim = 2 * cos.shape[seq + 1];
  if (p.gathered) {
    check.axis("cos", "batch_size", cos.shape[0], tokens.batch, "q.batch_size");
    check.axis("cos", "seqlen", cos.shape[1], tokens.seq, "q.seqlen");
    p.cos_stride_batch = cos.strides[0];
    p.sin_stride_batch = sin.strides[0];
  } else {
    p.max_position = cos.shape[0];
  }
  p.cos_stride_seq = cos.strides[seq];
  p.sin_stride_seq = sin.strides[seq];
}

// All but k and k_cache: v, the caches' shapes, slot_mapping.
AppendKVParams append_params(const TensorCheck& check, const AppendTensors& t, const TensorView& k_tensor,
                             const HeadsView& k) {
  const HeadsView v = tokens_input(check, "v", t.v, k_tensor, t.layout, "k");
  same_tokens(check, "v", v, k, "k");
  check.axis("v", "num_kv_heads", v.heads, k.heads, "k.num_kv_heads");
  AppendKVParams p;
  HeadsView caches[2];
  const TensorView* tensors[2] = {&t.k_cache, &t.v_cache};
  const char* names[2] = {"k_cache", "v_cache"};
  for (int i = 0; i < 2; ++i) {
    check.ndim(names[i], *tensors[i], 4,
               t.layout == Layout::kBLHD ? "[pages, page_size, heads, dim]" : "[pages, heads, page_size, dim]");
    check.same_dtype(names[i], *tensors[i], k_tensor.dtype, "k.dtype");
    check.device(names[i], *tensors[i], k_tensor.device, "k.device");
    check.last_stride(names[i], *tensors[i]);
    check.memory(names[i], *tensors[i], /*written=*/true);
    caches[i] = heads_view(*tensors[i], t.layout);
    check.axis(names[i], "num_kv_heads", caches[i].heads, k.heads, "k.num_kv_heads");
  }
  check.axis("k_cache", "head_dim", caches[0].dim, k.dim, "k.head_dim");
  check.axis("v_cache", "head_dim_v", caches[1].dim, v.dim, "v.head_dim_v");
  check.axis("v_cache", "num_pages", caches[1].batch, caches[0].batch, "k_cache.num_pages");
  check.axis("v_cache", "page_size", caches[1].seq, caches[0].seq, "k_cache.page_size");
  check.given("slot_mapping", t.slot_mapping, "[tokens], or [batch, len]");
  const TokenIndex slots = token_index(check, "slot_mapping", t.slot_mapping, k, k_tensor.device);

  p.device = k_tensor.device;
  p.dtype = k_tensor.dtype;
  p.batch_size = k.batch;
  p.seqlen = k.seq;
  p.num_kv_heads = k.heads;
  p.head_dim = k.dim;
  p.head_dim_v = v.dim;
  p.num_pages = caches[0].batch;
  p.page_size = caches[0].seq;
  p.v = t.v.data;
  p.k_cache = t.k_cache.data;
  p.v_cache = t.v_cache.data;
  p.v_stride_batch = v.stride_batch, p.v_stride_seq = v.stride_seq, p.v_stride_head = v.stride_head;
  p.k_cache_stride_page = caches[0].stride_batch;
  p.k_cache_stride_seq = caches[0].stride_seq;
  p.k_cache_stride_head = caches[0].stride_head;
  p.v_cache_stride_page = caches[1].stride_batch;
  p.v_cache_stride_seq = caches[1].stride_seq;
  p.v_cache_stride_head = caches[1].stride_head;
  p.slot_mapping = slots.array;
  p.slot_mapping_stride_batch = slots.stride_batch;
  p.slot_mapping_stride_seq = slots.stride_seq;
  return p;
}

}  // namespace

RotaryParams make_rotary_params(const char* op, const RotaryTensors& t) {
  const TensorCheck check(op);
  if (!t.q.given() && !t.k.given()) check.given("q", t.q, heads_shape(t.layout, false));
  const TensorView& lead = t.q.given() ? t.q : t.k;
  const char* lead_name = t.q.given() ? "q" : "k";
  RotaryParams p;
  p.device = lead.device;
  p.dtype = lead.dtype;
  HeadsView tokens{};
  if (t.q.given()) {
    const HeadsView q = tokens_input(check, "q", t.q, lead, t.layout, lead_name);
    const HeadsView out = tokens_output(check, "q_out", t.q_out, t.q, q, t.layout, "q");
    tokens = q;
    p.num_heads = q.heads;
    p.q = t.q.data;
    p.q_out = t.q_out.given() ? t.q_out.data : nullptr;
    p.q_stride_batch = q.stride_batch, p.q_stride_seq = q.stride_seq, p.q_stride_head = q.stride_head;
    p.q_out_stride_batch = out.stride_batch, p.q_out_stride_seq = out.stride_seq;
    p.q_out_stride_head = out.stride_head;
  }
  if (t.k.given()) {
    const HeadsView k = tokens_input(check, "k", t.k, lead, t.layout, lead_name);
    if (t.q.given()) {
      same_tokens(check, "k", k, tokens, "q");
      check.axis("k", "head_dim", k.dim, tokens.dim, "q.head_dim");
    }
    const HeadsView out = tokens_output(check, "k_out", t.k_out, t.k, k, t.layout, "k");
    tokens = k;
    p.num_kv_heads = k.heads;
    p.k = t.k.data;
    p.k_out = t.k_out.given() ? t.k_out.data : nullptr;
    p.k_stride_batch = k.stride_batch, p.k_stride_seq = k.stride_seq, p.k_stride_head = k.stride_head;
    p.k_out_stride_batch = out.stride_batch, p.k_out_stride_seq = out.stride_seq;
    p.k_out_stride_head = out.stride_head;
  }
  p.batch_size = tokens.batch;
  p.seqlen = tokens.seq;
  p.head_dim = tokens.dim;
  set_tables(check, p, t.cos, t.sin, tokens, lead.device);
  if (t.positions.given()) {
    if (p.gathered) {
      check.check().fail("positions", "given", "none", "cos and sin hold a row for each token already");
    }
    const TokenIndex positions = token_index(check, "positions", t.positions, tokens, lead.device);
    p.positions = positions.array;
    p.positions_stride_batch = positions.stride_batch;
    p.positions_stride_seq = positions.stride_seq;
  }
  return p;
}

AppendKVParams make_append_params(const char* op, const AppendTensors& t) {
  const TensorCheck check(op);
  const HeadsView k = tokens_input(check, "k", t.k, t.k, t.layout, "k");
  AppendKVParams p = append_params(check, t, t.k, k);
  p.k = t.k.data;
  p.k_stride_batch = k.stride_batch, p.k_stride_seq = k.stride_seq, p.k_stride_head = k.stride_head;
  return p;
}

RotaryAppendKVParams make_rotary_append_params(const char* op, const RotaryTensors& rotary,
                                               const AppendTensors& append) {
  const TensorCheck check(op);
  check.given("q", rotary.q, heads_shape(rotary.layout, false));
  check.given("k", rotary.k, heads_shape(rotary.layout, false));
  RotaryAppendKVParams p;
  p.rotary = make_rotary_params(op, rotary);
  p.append = append_params(check, append, rotary.k, heads_view(rotary.k, rotary.layout));
  return p;
}

}  // namespace dlattn
