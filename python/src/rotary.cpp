// Rotary embedding: arrays -> RotaryParams -> library.
#include "dlattn/rotary.h"

#include <cctype>

#include "backend.h"
#include "docstrings.h"
#include "options.h"
#include "output.h"

namespace dlattn::py {

namespace {

double work_of(const RotaryParams& p) {
  return product({p.batch_size, p.seqlen, p.num_heads + p.num_kv_heads, p.head_dim});
}

Output new_like(Call& call, nb::handle object, const TensorView& view) {
  return new_output(call, object, view, view.dtype, view.shape, view.ndim);
}

// The library's names of a function and its arguments -> those of the Python function, where they stand as whole words.
using Renames = std::initializer_list<std::pair<const char*, const char*>>;
[[noreturn]] void rethrow_renamed(const InvalidArgument& error, Renames renames) {
  const std::string text = error.what();
  const auto in_word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; };
  std::string result;
  for (size_t i = 0; i < text.size();) {
    size_t end = i;
    while (end < text.size() && in_word(text[end])) ++end;
    std::string word = end == i ? std::string(1, text[i]) : text.substr(i, end - i);
    i += word.size();
    for (const auto& [from, to] : renames) {
      if (word == from) {
        word = to;
        break;
      }
    }
    result += word;
  }
  throw InvalidArgument(result);
}

// After the arrays are imported.
nb::object rotary(Call& call, const Handles<10>& h, const RotaryTensors& t, Output q_out, Output k_out) {
  RotaryParams params = make_rotary_params(call.op(), t);
  params.interleaved = parse_bool(call, "interleaved", h[4]);

  nb::object elsewhere = run_elsewhere(call, t.q, "q", params, library_explain, library_validate, [&] {
    return NamedArguments{{"q", h[0]},       {"k", h[1]},         {"cos", h[2]},
                          {"sin", h[3]},     {"positions", h[5]}, {"interleaved", h[4]},
                          {"inplace", h[6]}, {"layout", h[7]},    {"out", h[8]}};
  });
  if (elsewhere.is_valid()) return elsewhere;
  if (!t.q_out.given()) params.q_out = (q_out = new_like(call, h[0], t.q)).view.data;
  if (t.k.given() && !t.k_out.given()) params.k_out = (k_out = new_like(call, h[1], t.k)).view.data;
  run(call, work_of(params), [&] { rotary_embedding(params, call.stream()); });
  return nb::make_tuple(q_out.finish(), h[1].is_none() ? nb::none() : k_out.finish());
}

nb::object rotary_embedding_py(const Handles<10>& h) {
  const auto [q, k, cos, sin, interleaved, positions, inplace_object, layout, out, stream] = h;
  Call call("rotary_embedding", stream);
  const bool inplace = parse_bool(call, "inplace", inplace_object);
  if (inplace && !out.is_none()) call.fail("out is given, expected None (= inplace is True)");
  RotaryTensors t;
  t.layout = parse_layout(call, layout);
  t.q = inplace ? call.output("q", q) : call.input("q", q);
  if (!k.is_none()) t.k = inplace ? call.output("k", k) : call.input("k", k);
  t.cos = call.input("cos", cos, Role::kTable);
  t.sin = call.input("sin", sin, Role::kTable);
  t.positions = call.optional_input("positions", positions, Role::kIndex);
  Output q_out, k_out;
  if (inplace) {
    if (t.q.read_only) call.fail("q is read-only, expected a writable array (= inplace is True)");
    if (t.k.given() && t.k.read_only) call.fail("k is read-only, expected a writable array (= inplace is True)");
    q_out = {nb::borrow(q), t.q};
    k_out = {nb::borrow(k), t.k};
    t.q_out = t.q;
    t.k_out = t.k;
  } else if (!out.is_none()) {
    if (!PyTuple_Check(out.ptr()) && !PyList_Check(out.ptr())) {
      call.fail("out is " + a_text(out) + ", expected (q_out, k_out)");
    }
    const OutArguments given = parse_out(call, out, "q_out", "k_out", true);
    if (!given.out.is_none()) t.q_out = (q_out = given_output(call, "q_out", given.out)).view;
    if (k.is_none() && !given.lse.is_none()) call.fail("out[1] is given, expected None (= k is None)");
    if (!given.lse.is_none()) t.k_out = (k_out = given_output(call, "k_out", given.lse)).view;
  }
  try {
    return rotary(call, h, t, std::move(q_out), std::move(k_out));
  } catch (const InvalidArgument& error) {
    if (!inplace) throw;
    rethrow_renamed(error, {{"q_out", "q"}, {"k_out", "k"}});  // the caller has given no outputs
  }
}

nb::object apply_rotary_emb(const Handles<2>& h) {
  const auto [x, freqs] = h;
  Call call("apply_rotary_emb", nb::none());
  const bool is_pair = PyTuple_Check(freqs.ptr()) || PyList_Check(freqs.ptr());
  if (!is_pair || nb::len(freqs) != 2) {
    call.fail("freqs " + (is_pair ? "has " + std::to_string(nb::len(freqs)) + " items" : "is " + a_text(freqs)) +
              ", expected (cos, sin)");
  }
  const nb::object cos = freqs[0], sin = freqs[1];
  RotaryTensors t;
  t.q = call.input("x", x);
  t.cos = call.input("cos", cos, Role::kTable);
  t.sin = call.input("sin", sin, Role::kTable);
  try {
    RotaryParams params = make_rotary_params(call.op(), t);
    params.interleaved = true;
    nb::object elsewhere = run_elsewhere(call, t.q, "x", params, library_explain, library_validate,
                                         [&] { return NamedArguments{{"x", h[0]}, {"freqs", h[1]}}; });
    if (elsewhere.is_valid()) return elsewhere;
    Output out = new_like(call, x, t.q);
    params.q_out = out.view.data;
    run(call, work_of(params), [&] { rotary_embedding(params, call.stream()); });
    return out.finish();
  } catch (const InvalidArgument& error) {
    rethrow_renamed(error, {{"rotary_embedding", "apply_rotary_emb"}, {"q", "x"}});
  }
}

// After the arrays are imported.
nb::object rotary_append(Call& call, const Handles<13>& h, const RotaryTensors& t, const AppendTensors& a,
                         Output q_out) {
  RotaryAppendKVParams params = make_rotary_append_params(call.op(), t, a);
  params.rotary.interleaved = parse_bool(call, "interleaved", h[9]);

  nb::object elsewhere = run_elsewhere(call, t.q, "q", params, library_explain, library_validate, [&] {
    return NamedArguments{{"q", h[0]},           {"k", h[1]},       {"v", h[2]},
                          {"cos", h[3]},         {"sin", h[4]},     {"positions", h[5]},
                          {"k_cache", h[6]},     {"v_cache", h[7]}, {"slot_mapping", h[8]},
                          {"interleaved", h[9]}, {"layout", h[10]}, {"out", h[11]}};
  });
  if (elsewhere.is_valid()) return elsewhere;
  if (!t.q_out.given()) params.rotary.q_out = (q_out = new_like(call, h[0], t.q)).view.data;
  run(call, work_of(params.rotary), [&] { rotary_append_kv(params, call.stream()); });
  return q_out.finish();
}

nb::object rotary_append_kv_py(const Handles<13>& h) {
  const auto [q, k, v, cos, sin, positions, k_cache, v_cache, slot_mapping, interleaved, layout, out, stream] = h;
  Call call("rotary_append_kv", stream);
  RotaryTensors t;
  AppendTensors a;
  t.layout = a.layout = parse_layout(call, layout);
  t.q = call.input("q", q);
  t.k = call.input("k", k);
  a.v = call.input("v", v);
  t.cos = call.input("cos", cos, Role::kTable);
  t.sin = call.input("sin", sin, Role::kTable);
  t.positions = call.optional_input("positions", positions, Role::kIndex);
  a.k_cache = call.output("k_cache", k_cache);
  a.v_cache = call.output("v_cache", v_cache);
  a.slot_mapping = call.input("slot_mapping", slot_mapping, Role::kIndex);
  Output q_out;
  if (!out.is_none()) t.q_out = (q_out = given_output(call, "out", out)).view;
  try {
    return rotary_append(call, h, t, a, std::move(q_out));
  } catch (const InvalidArgument& error) {
    rethrow_renamed(error, {{"q_out", "out"}});
  }
}

}  // namespace

void register_rotary(nb::module_& m) {
  const auto none = nb::none();
  define(m, "rotary_embedding", rotary_embedding_py, "q"_any, "k"_any, "cos"_any, "sin"_any, nb::kw_only(),
         "interleaved"_any, "positions"_any = none, "inplace"_any = false, "layout"_any = "blhd", "out"_any = none,
         "stream"_any = none, kRotaryEmbeddingDoc);
  define(m, "apply_rotary_emb", apply_rotary_emb, "x"_any, "freqs"_any, kApplyRotaryDoc);
  define(m, "rotary_append_kv", rotary_append_kv_py, "q"_any, "k"_any, "v"_any, "cos"_any, "sin"_any, "positions"_any,
         "k_cache"_any, "v_cache"_any, "slot_mapping"_any, nb::kw_only(), "interleaved"_any, "layout"_any = "blhd",
         "out"_any = none, "stream"_any = none, kRotaryAppendDoc);
}

}  // namespace dlattn::py
