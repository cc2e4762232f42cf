// Which backend a call goes to, and running it.
#pragma once

#include <utility>
#include <vector>

#include "array.h"
#include "dlattn/attention.h"
#include "dlattn/rotary.h"
#include "jax.h"
#include "py.h"

namespace dlattn::py {

// What attn_backend() sets for a thread or task.
void use_backend_variable(nb::object context_variable);

using NamedArguments = std::vector<std::pair<const char*, nb::handle>>;

// Where the call goes: to PyTorch, or (with a reason) nowhere, or else to the library.
struct Route {
  bool torch = false;
  const char* backend = "cpu";  // that refuses
  std::string refusal;          // why the backend in force cannot take the call; empty: it can
  bool not_compiled = false;
};
Route route_of(const Call& call, const TensorView& first, const char* first_name);
[[noreturn]] void refuse(const Call& call, const Route& route);

// The function of the same name in dlattn._torch.
nb::object call_torch(const Call& call, const NamedArguments& arguments);

// The answer to explain(): (supported, backend, kernel, reason).
nb::object answer(const Call& call, const Explanation& explanation);
nb::object answer_torch(const Call& call);

// For CUDA arrays in a build without CUDA, before any result is made.
[[noreturn]] void not_compiled(const Call& call, const Explanation& explanation);
bool cuda_compiled();

// The library's questions about parameters, as function objects: each operation has its own overload.
constexpr auto library_explain = [](const auto& params) { return explain(params); };
constexpr auto library_validate = [](const auto& params) { validate(params); };

// All that does not run here: a call that PyTorch does, or an answer to explain(). Null: go on. `explain` and
// `validate` are the library's, of the call's parameters; `torch_arguments` gives the call's arguments by name.
template <typename Params, typename Explain, typename Validate, typename Arguments>
nb::object run_elsewhere(const Call& call, const TensorView& first, const char* first_name, const Params& params,
                         Explain&& explain, Validate&& validate, Arguments&& torch_arguments) {
  const Route route = route_of(call, first, first_name);
  const bool on_cpu = first.device.type == DeviceType::kCPU;
  if (call.explanation() != nullptr) {
    const Explanation here = explain(params);  // checks shapes and options, whatever the route
    if (route.torch) return answer_torch(call);
    return answer(call, route.refusal.empty() ? here : Explanation{false, route.backend, "", route.refusal});
  }
  if (route.torch) {
    if (on_cpu) {
      validate(params);
    } else {
      explain(params);  // shapes and options; for values PyTorch's own guards have to do
    }
    return call_torch(call, torch_arguments());
  }
  if (!route.refusal.empty()) refuse(call, route);
  if (!on_cpu && !cuda_compiled()) not_compiled(call, explain(params));
  return {};
}

// Gives the GIL up while it lives.
class ReleasedGil {
 public:
  ReleasedGil() : state_(PyEval_SaveThread()) {}
  ReleasedGil(const ReleasedGil&) = delete;
  ReleasedGil& operator=(const ReleasedGil&) = delete;
  ~ReleasedGil();

 private:
  PyThreadState* state_;
};

// Of sizes, without overflow.
inline double product(std::initializer_list<int64_t> sizes) {
  double result = 1;
  for (const int64_t size : sizes) result *= static_cast<double>(size);
  return result;
}

// Runs fn(), which writes the call's outputs: without the GIL if it is worth the 0.1 us that this costs; `work` is a
// rough count of multiply-adds. A CUDA launch may have to wait for room in the queue, and what it waits for may be a
// callback of some framework that needs the GIL.
template <typename F>
void run(Call& call, double work, F&& fn) {
  constexpr double kWorthReleasing = 1 << 15;  // some microseconds of one core
  if (work < kWorthReleasing && !call.on_cuda()) {
    fn();
  } else {
    const ReleasedGil released;
    fn();
  }
  call.tell_writes();
  if (call.jax_element().given() && !call.has_jax_results()) keep_for_jax(call);
}

}  // namespace dlattn::py
