// Scalar arguments and the choice of backend.
#pragma once

#include <array>
#include <initializer_list>
#include <utility>
#include <vector>

#include "array.h"
#include "dlattn/params.h"

namespace dlattn::py {

bool parse_bool(const Call& call, const char* name, nb::handle object);
float parse_float(const Call& call, const char* name, nb::handle object);
Layout parse_layout(const Call& call, nb::handle object);
std::pair<int64_t, int64_t> parse_window(const Call& call, nb::handle object);

// ATTN_BACKEND of python/dlattn/_backend.py.
enum class BackendChoice : int { kAuto = 0, kCPU = 1, kCUDA = 2, kTorch = 3 };

// What attn_backend() has set for this thread or task.
BackendChoice current_backend();
void use_backend_variable(nb::object context_variable);

// Whether the call goes to PyTorch. Throws if the backend in force cannot take tensors of this device or gradients.
bool goes_to_torch(const Call& call, const TensorView& first, const char* first_name);

using NamedArguments = std::vector<std::pair<const char*, nb::handle>>;

// The function of the same name in dlattn._torch; or, for explain(), what it would run.
nb::object call_torch(const Call& call, const NamedArguments& arguments);

// The answer to explain(): (supported, backend, kernel, reason).
nb::object answer(const Call& call, const Explanation& explanation);

// Of sizes, without overflow.
inline double product(std::initializer_list<int64_t> sizes) {
  double result = 1;
  for (const int64_t size : sizes) result *= static_cast<double>(size);
  return result;
}

// Runs fn() without the GIL if it is worth the 0.1 us that this costs; `work` is a rough count of multiply-adds.
template <typename F>
void run_released(double work, F&& fn) {
  constexpr double kWorthReleasing = 1 << 15;  // some microseconds of one core
  if (work < kWorthReleasing) return fn();
  nb::gil_scoped_release release;
  fn();
}

// An argument that takes any object, None too: the messages about what does not fit are ours.
inline auto operator""_any(const char* name, size_t) { return nb::arg(name).none(); }

// m.def() of a function of N handles that takes them as one array.
template <size_t>
using Handle = nb::handle;
template <size_t N>
using Handles = std::array<nb::handle, N>;

template <size_t N, size_t... I, typename... Extra>
void define_impl(nb::module_& m, const char* name, nb::object (*function)(const Handles<N>&), std::index_sequence<I...>,
                 const Extra&... extra) {
  m.def(name, [function](Handle<I>... handles) { return function({handles...}); }, extra...);
}
template <size_t N, typename... Extra>
void define(nb::module_& m, const char* name, nb::object (*function)(const Handles<N>&), const Extra&... extra) {
  define_impl<N>(m, name, function, std::make_index_sequence<N>(), extra...);
}

void register_attention(nb::module_& m);
void register_rotary(nb::module_& m);
void register_append(nb::module_& m);
void register_merge(nb::module_& m);
void register_runtime(nb::module_& m);

}  // namespace dlattn::py
