// The attention functions: arrays -> parameters -> library. Shape rules are the library's (tensor_view.h).
#include "dlattn/attention.h"

#include <optional>
#include <type_traits>

#include "backend.h"
#include "docstrings.h"
#include "options.h"
#include "output.h"

namespace dlattn::py {

namespace {

// The keywords that all attention functions end with, in this order.
struct Common {
  nb::handle is_causal, mask, scale, window, softcap, sinks, alibi_slopes, layout, out, return_lse, stream;
};
constexpr size_t kNumCommon = 11;

template <size_t N>
Common common_of(const Handles<N>& h) {
  constexpr size_t i = N - kNumCommon;
  return {h[i], h[i + 1], h[i + 2], h[i + 3], h[i + 4], h[i + 5], h[i + 6], h[i + 7], h[i + 8], h[i + 9], h[i + 10]};
}

// Rough counts of multiply-adds, for the decision to release the GIL.
double work_of(const AttentionParams& p) {
  return product({p.batch_size, p.num_heads, p.seqlen_q, p.seqlen_k, p.head_dim + p.head_dim_v});
}
double work_of(const VarlenAttentionParams& p) {
  return product({p.total_q, p.total_k, p.num_heads, p.head_dim + p.head_dim_v});
}
double work_of(const PagedAttentionParams& p) {
  const int64_t queries = p.batch_size * p.seqlen_q + p.total_q;
  return product({queries, p.max_pages, p.page_size, p.num_heads, p.head_dim + p.head_dim_v});
}

// The operations: how parameters are made, what answers explain(), what runs.
template <AttentionOp kOp>
struct Dense {
  using Params = AttentionParams;
  static Params make(const char* op, const AttentionTensors& t) { return make_attention_params(op, t); }
  static Explanation explain(const Params& p) { return dlattn::explain(p, kOp); }
  static void validate(const Params& p) { dlattn::validate(p, kOp); }
  static size_t workspace_size(const Params& p) { return attn_workspace_size(p, kOp); }
  static void run(const Params& p, Stream stream) {
    if (kOp == AttentionOp::kPrefill) return attn_prefill(p, stream);
    if (kOp == AttentionOp::kDecode) return attn_decode(p, stream);
    attention(p, stream);
  }
};
struct Varlen {
  using Params = VarlenAttentionParams;
  static Params make(const char* op, const AttentionTensors& t) { return make_varlen_params(op, t); }
  static Explanation explain(const Params& p) { return dlattn::explain(p); }
  static void validate(const Params& p) { dlattn::validate(p); }
  static size_t workspace_size(const Params& p) { return attn_workspace_size(p); }
  static void run(const Params& p, Stream stream) { attn_varlen(p, stream); }
};
template <bool kPrefill>
struct Paged {
  using Params = PagedAttentionParams;
  static Params make(const char* op, const AttentionTensors& t) { return make_paged_params(op, t); }
  static Explanation explain(const Params& p) { return dlattn::explain(p); }
  static void validate(const Params& p) { dlattn::validate(p); }
  static size_t workspace_size(const Params& p) { return attn_workspace_size(p); }
  static void run(const Params& p, Stream stream) {
    if (kPrefill) return attn_paged_prefill(p, stream);
    attn_paged_decode(p, stream);
  }
};

// A new result of q's framework: out is shaped like q with v's head_dim, lse [batch, heads, len] or [heads, tokens].
Output new_out(Call& call, nb::handle q, const AttentionTensors& t) {
  int64_t shape[kMaxDims];
  for (int i = 0; i < t.q.ndim; ++i) shape[i] = t.q.shape[i];
  shape[t.q.ndim - 1] = t.v.shape[t.v.ndim - 1];
  return new_output(call, q, t.q, t.q.dtype, shape, t.q.ndim);
}
Output new_lse(Call& call, nb::handle q, const AttentionTensors& t) {
  const int64_t* s = t.q.shape;
  if (t.q.ndim == 3) {
    const int64_t shape[] = {s[1], s[0]};
    return new_output(call, q, t.q, DType::kFloat32, shape, 2);
  }
  const bool blhd = t.layout == Layout::kBLHD;
  const int64_t shape[] = {s[0], blhd ? s[2] : s[1], blhd ? s[1] : s[2]};
  return new_output(call, q, t.q, DType::kFloat32, shape, 3);
}

// The common keywords, for the functions of dlattn._torch.
void add_common(NamedArguments& arguments, const Common& c) {
  arguments.insert(arguments.end(), {{"is_causal", c.is_causal},
                                     {"mask", c.mask},
                                     {"scale", c.scale},
                                     {"window", c.window},
                                     {"softcap", c.softcap},
                                     {"sinks", c.sinks},
                                     {"alibi_slopes", c.alibi_slopes},
                                     {"layout", c.layout},
                                     {"out", c.out},
                                     {"return_lse", c.return_lse}});
}

// The call after its own arrays are in `t`: options, results, run. `own` gives its own arguments by name.
template <typename Op, typename Own>
nb::object run_attention(Call& call, nb::handle q, AttentionTensors& t, const Common& c, Own own) {
  t.layout = parse_layout(call, c.layout);
  if (std::is_same_v<Op, Varlen> && t.layout != Layout::kBLHD) {
    call.fail("layout is 'bhld', expected 'blhd' (= packed tokens are [tokens, heads, dim])");
  }
  t.mask = call.optional_input("mask", c.mask, Role::kMask);
  t.sinks = call.optional_input("sinks", c.sinks);
  t.alibi_slopes = call.optional_input("alibi_slopes", c.alibi_slopes);
  const bool return_lse = parse_bool(call, "return_lse", c.return_lse);
  const OutArguments given = parse_out(call, c.out, "out", "lse", return_lse);
  Output out, lse;
  if (!given.out.is_none()) t.out = (out = given_output(call, "out", given.out)).view;
  if (!given.lse.is_none()) t.lse = (lse = given_output(call, "lse", given.lse)).view;

  typename Op::Params params = Op::make(call.op(), t);
  AttentionOptions& options = params.options;
  options.is_causal = parse_bool(call, "is_causal", c.is_causal);
  if (!c.scale.is_none()) options.scale = parse_float(call, "scale", c.scale);
  options.softcap = parse_float(call, "softcap", c.softcap);
  const auto [window_left, window_right] = parse_window(call, c.window);
  options.window_left = window_left;
  options.window_right = window_right;

  nb::object elsewhere = run_elsewhere(call, t.q, "q", params, Op::explain, Op::validate, [&] {
    NamedArguments arguments = own();
    add_common(arguments, c);
    return arguments;
  });
  if (elsewhere.is_valid()) return elsewhere;
  if (!t.out.given()) params.out = (out = new_out(call, q, t)).view.data;
  if (return_lse && !t.lse.given()) params.lse = static_cast<float*>((lse = new_lse(call, q, t)).view.data);
  std::optional<Workspace> workspace;
  if (t.q.device.type != DeviceType::kCPU) {
    params.workspace_bytes = Op::workspace_size(params);
    if (params.workspace_bytes > 0) {
      params.workspace = workspace.emplace(call, q, out.object, t.q, params.workspace_bytes).data();
    }
  }
  run(call, work_of(params), [&] { Op::run(params, call.stream()); });
  if (!return_lse) return out.finish();
  return nb::make_tuple(out.finish(), lse.finish());
}

template <AttentionOp kOp>
nb::object dense(const Handles<4 + kNumCommon>& h) {
  constexpr const char* kName = kOp == AttentionOp::kPrefill  ? "attn_prefill"
                                : kOp == AttentionOp::kDecode ? "attn_decode"
                                                              : "attention";
  const Common c = common_of(h);
  Call call(kName, c.stream);
  AttentionTensors t;
  t.q = call.input("q", h[0]);
  t.k = call.input("k", h[1]);
  t.v = call.input("v", h[2]);
  t.seqlens_k = call.optional_input("seqlens_k", h[3], Role::kIndex);
  return run_attention<Dense<kOp>>(
      call, h[0], t, c, [&] { return NamedArguments{{"q", h[0]}, {"k", h[1]}, {"v", h[2]}, {"seqlens_k", h[3]}}; });
}

nb::object varlen(const Handles<5 + kNumCommon>& h) {
  const Common c = common_of(h);
  Call call("attn_varlen", c.stream);
  AttentionTensors t;
  t.q = call.input("q", h[0]);
  t.k = call.input("k", h[1]);
  t.v = call.input("v", h[2]);
  t.cu_seqlens_q = call.input("cu_seqlens_q", h[3], Role::kIndex);
  t.cu_seqlens_k = call.input("cu_seqlens_k", h[4], Role::kIndex);
  return run_attention<Varlen>(call, h[0], t, c, [&] {
    return NamedArguments{{"q", h[0]}, {"k", h[1]}, {"v", h[2]}, {"cu_seqlens_q", h[3]}, {"cu_seqlens_k", h[4]}};
  });
}

nb::object paged_decode(const Handles<5 + kNumCommon>& h) {
  const Common c = common_of(h);
  Call call("attn_paged_decode", c.stream);
  AttentionTensors t;
  t.q = call.input("q", h[0]);
  t.k = call.input("k_cache", h[1]);
  t.v = call.input("v_cache", h[2]);
  t.page_table = call.input("page_table", h[3], Role::kIndex);
  t.seqlens_k = call.input("seqlens_k", h[4], Role::kIndex);
  return run_attention<Paged<false>>(call, h[0], t, c, [&] {
    return NamedArguments{{"q", h[0]}, {"k_cache", h[1]}, {"v_cache", h[2]}, {"page_table", h[3]}, {"seqlens_k", h[4]}};
  });
}

nb::object paged_prefill(const Handles<6 + kNumCommon>& h) {
  const Common c = common_of(h);
  Call call("attn_paged_prefill", c.stream);
  AttentionTensors t;
  t.q = call.input("q", h[0]);
  t.k = call.input("k_cache", h[1]);
  t.v = call.input("v_cache", h[2]);
  t.page_table = call.input("page_table", h[3], Role::kIndex);
  t.seqlens_k = call.input("seqlens_k", h[4], Role::kIndex);
  t.cu_seqlens_q = call.input("cu_seqlens_q", h[5], Role::kIndex);
  return run_attention<Paged<true>>(call, h[0], t, c, [&] {
    return NamedArguments{{"q", h[0]},          {"k_cache", h[1]},   {"v_cache", h[2]},
                          {"page_table", h[3]}, {"seqlens_k", h[4]}, {"cu_seqlens_q", h[5]}};
  });
}

// m.def() with the common keywords after the operation's own arguments.
template <size_t N, typename... Own>
void define_attention(nb::module_& m, const char* name, nb::object (*function)(const Handles<N>&), const char* doc,
                      const Own&... own) {
  define<N>(m, name, function, own..., "is_causal"_any = false, "mask"_any = nb::none(), "scale"_any = nb::none(),
            "window"_any = nb::make_tuple(-1, -1), "softcap"_any = 0.0, "sinks"_any = nb::none(),
            "alibi_slopes"_any = nb::none(), "layout"_any = "blhd", "out"_any = nb::none(), "return_lse"_any = false,
            "stream"_any = nb::none(), (std::string(doc) + kCommonDoc).c_str());
}

}  // namespace

void register_attention(nb::module_& m) {
  const auto none = nb::none();
  define_attention(m, "attention", dense<AttentionOp::kAuto>, kAttentionDoc, "q"_any, "k"_any, "v"_any, nb::kw_only(),
                   "seqlens_k"_any = none);
  define_attention(m, "attn_prefill", dense<AttentionOp::kPrefill>, kPrefillDoc, "q"_any, "k"_any, "v"_any,
                   nb::kw_only(), "seqlens_k"_any = none);
  define_attention(m, "attn_decode", dense<AttentionOp::kDecode>, kDecodeDoc, "q"_any, "k"_any, "v"_any, nb::kw_only(),
                   "seqlens_k"_any = none);
  define_attention(m, "attn_varlen", varlen, kVarlenDoc, "q"_any, "k"_any, "v"_any, "cu_seqlens_q"_any,
                   "cu_seqlens_k"_any, nb::kw_only());
  define_attention(m, "attn_paged_decode", paged_decode, kPagedDecodeDoc, "q"_any, "k_cache"_any, "v_cache"_any,
                   "page_table"_any, "seqlens_k"_any, nb::kw_only());
  define_attention(m, "attn_paged_prefill", paged_prefill, kPagedPrefillDoc, "q"_any, "k_cache"_any, "v_cache"_any,
                   "page_table"_any, "seqlens_k"_any, "cu_seqlens_q"_any, nb::kw_only());
}

}  // namespace dlattn::py
