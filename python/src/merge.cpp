// merge_attention_states: partial results over disjoint keys.
#include <vector>

#include "backend.h"
#include "dlattn/attention.h"
#include "docstrings.h"
#include "options.h"
#include "output.h"

namespace dlattn::py {

namespace {

// The partial results: a list or tuple of arrays, or one array stacked on a new first axis.
struct States {
  std::vector<TensorView> views;
  nb::object first;  // an array whose framework the results are made by
};

States import_states(Call& call, const char* name, nb::handle object) {
  States states;
  if (PyTuple_Check(object.ptr()) || PyList_Check(object.ptr())) {
    const size_t count = nb::len(object);
    states.views.reserve(count);
    for (size_t i = 0; i < count; ++i) {
      nb::object item = object[i];
      states.views.push_back(call.input((std::string(name) + "[" + std::to_string(i) + "]").c_str(), item));
      if (i == 0) states.first = item;
      call.keep(std::move(item));  // the list may be changed by others while we run
    }
    return states;
  }
  const TensorView stack = call.input(name, object);
  if (stack.ndim < 1) call.fail(std::string(name) + ".ndim is 0, expected a stack of arrays or a sequence of them");
  TensorView item = stack;
  item.ndim = stack.ndim - 1;
  for (int i = 0; i < item.ndim; ++i) {
    item.shape[i] = stack.shape[i + 1];
    item.strides[i] = stack.strides[i + 1];
  }
  const int64_t bytes = dtype_size(stack.dtype) * stack.strides[0];
  for (int64_t i = 0; i < stack.shape[0]; ++i) {
    item.data = stack.data == nullptr ? nullptr : static_cast<char*>(stack.data) + i * bytes;
    states.views.push_back(item);
  }
  states.first = nb::borrow(object);
  return states;
}

nb::object merge_py(const Handles<5>& h) {
  const auto [outs, lses, layout_object, out, stream] = h;
  Call call("merge_attention_states", stream);
  const Layout layout = parse_layout(call, layout_object);
  const States out_states = import_states(call, "outs", outs);
  const States lse_states = import_states(call, "lses", lses);
  const size_t count = out_states.views.size();
  if (count == 0) call.fail("outs is empty, expected at least one array");
  if (lse_states.views.size() != count) {
    call.fail("lses has " + std::to_string(lse_states.views.size()) + " items, expected " + std::to_string(count) +
              " (= those of outs)");
  }
  StateTensors result;
  Output merged_out, merged_lse;
  if (!out.is_none()) {
    if (!PyTuple_Check(out.ptr()) && !PyList_Check(out.ptr())) {
      call.fail("out is " + a_text(out) + ", expected (out, lse)");
    }
    const OutArguments given = parse_out(call, out, "out", "lse", true);
    if (!given.out.is_none()) result.out = (merged_out = given_output(call, "out", given.out)).view;
    if (!given.lse.is_none()) result.lse = (merged_lse = given_output(call, "lse", given.lse)).view;
  }
  std::vector<StateTensors> inputs(count);
  for (size_t i = 0; i < count; ++i) inputs[i] = {out_states.views[i], lse_states.views[i]};
  std::vector<AttentionState> states(count);
  MergeParams params =
      make_merge_params(call.op(), inputs.data(), static_cast<int64_t>(count), result, layout, states.data());

  const TensorView& first = inputs[0].out;
  nb::object elsewhere = run_elsewhere(call, first, "outs[0]", params, library_explain, library_validate, [&] {
    return NamedArguments{{"outs", h[0]}, {"lses", h[1]}, {"layout", h[2]}, {"out", h[3]}};
  });
  if (elsewhere.is_valid()) return elsewhere;
  if (!result.out.given()) {
    merged_out = new_output(call, out_states.first, first, first.dtype, first.shape, first.ndim);
    params.out = merged_out.view.data;
  }
  if (!result.lse.given()) {
    const TensorView& lse = inputs[0].lse;
    merged_lse = new_output(call, out_states.first, first, DType::kFloat32, lse.shape, lse.ndim);
    params.lse = static_cast<float*>(merged_lse.view.data);
  }
  const double work =
      product({params.num_states, params.batch_size, params.seqlen_q, params.num_heads, params.head_dim_v});
  run(call, work, [&] { merge_attention_states(params, call.stream()); });
  return nb::make_tuple(merged_out.finish(), merged_lse.finish());
}

}  // namespace

void register_merge(nb::module_& m) {
  define(m, "merge_attention_states", merge_py, "outs"_any, "lses"_any, nb::kw_only(), "layout"_any = "blhd",
         "out"_any = nb::none(), "stream"_any = nb::none(), kMergeDoc);
}

}  // namespace dlattn::py
