// Scalar arguments, and how functions are defined.
#pragma once

#include <array>
#include <utility>

#include "array.h"
#include "dlattn/params.h"

namespace dlattn::py {

// False: no int of 64 bits. A bool is none. Interrupts and the like come through.
bool parse_int64(nb::handle object, int64_t* result);
bool parse_bool(const Call& call, const char* name, nb::handle object);
float parse_float(const Call& call, const char* name, nb::handle object);
Layout parse_layout(const Call& call, nb::handle object);
std::pair<int64_t, int64_t> parse_window(const Call& call, nb::handle object);

// An argument that takes any object, None too: the messages about what does not fit are ours.
inline auto operator""_any(const char* name, size_t) { return nb::arg(name).none(); }

// Adds an overload that is tried last, for arguments that do not fit the signature: its TypeError says what is wrong.
void define_mismatch(nb::module_& m, const char* name);

// m.def() of a function of N handles that takes them as one array.
template <size_t>
using Handle = nb::handle;
template <size_t N>
using Handles = std::array<nb::handle, N>;

template <size_t N, size_t... I, typename... Extra>
void define_impl(nb::module_& m, const char* name, nb::object (*function)(const Handles<N>&), std::index_sequence<I...>,
                 const Extra&... extra) {
  m.def(name, [function](Handle<I>... handles) { return function({handles...}); }, extra...);
  define_mismatch(m, name);
}
template <size_t N, typename... Extra>
void define(nb::module_& m, const char* name, nb::object (*function)(const Handles<N>&), const Extra&... extra) {
  define_impl<N>(m, name, function, std::make_index_sequence<N>(), extra...);
}

void register_attention(nb::module_& m);
void register_rotary(nb::module_& m);
void register_append(nb::module_& m);
void register_merge(nb::module_& m);
void register_jax(nb::module_& m);
void register_runtime(nb::module_& m);

}  // namespace dlattn::py
