// append_kv: new keys and values into a paged cache.
#include "backend.h"
#include "dlattn/rotary.h"
#include "docstrings.h"
#include "options.h"
#include "output.h"

namespace dlattn::py {

namespace {

nb::object append_kv_py(const Handles<7>& h) {
  const auto [k, v, k_cache, v_cache, slot_mapping, layout, stream] = h;
  Call call("append_kv", stream);
  AppendTensors t;
  t.layout = parse_layout(call, layout);
  t.k = call.input("k", k);
  t.v = call.input("v", v);
  t.k_cache = call.output("k_cache", k_cache);
  t.v_cache = call.output("v_cache", v_cache);
  t.slot_mapping = call.input("slot_mapping", slot_mapping, Role::kIndex);
  const AppendKVParams params = make_append_params(call.op(), t);
  nb::object elsewhere = run_elsewhere(call, t.k, "k", params, library_explain, library_validate, [&] {
    return NamedArguments{{"k", h[0]},     {"v", h[1]}, {"k_cache", h[2]}, {"v_cache", h[3]}, {"slot_mapping", h[4]},
                          {"layout", h[5]}};
  });
  if (elsewhere.is_valid()) return elsewhere;
  const double work =
      product({params.batch_size, params.seqlen, params.num_kv_heads, params.head_dim + params.head_dim_v});
  run(call, work, [&] { append_kv(params, call.stream()); });
  return nb::none();
}

}  // namespace

void register_append(nb::module_& m) {
  define(m, "append_kv", append_kv_py, "k"_any, "v"_any, "k_cache"_any, "v_cache"_any, "slot_mapping"_any,
         nb::kw_only(), "layout"_any = "blhd", "stream"_any = nb::none(), kAppendDoc);
}

}  // namespace dlattn::py
