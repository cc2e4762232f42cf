// Results, made by the caller's framework.
#pragma once

#include "array.h"

namespace dlattn::py {

// A result array: the object to return and the memory to write.
struct Output {
  nb::object object;
  TensorView view;
  nb::object jax_device;  // set: `object` is a NumPy array that becomes a JAX array on this device

  // What the caller gets.
  nb::object finish();
};

// The array that the caller gave for a result.
Output given_output(Call& call, const char* name, nb::handle object);

// A new contiguous array of the framework, device and (if dtype is the view's) dtype of `like`, whose view is
// `like_view`.
Output new_output(Call& call, nb::handle like, const TensorView& like_view, DType dtype, const int64_t* shape,
                  int ndim);

// out=None, an array, or (out, lse).
struct OutArguments {
  nb::object out, lse;  // None: not given
};
OutArguments parse_out(const Call& call, nb::handle out, const char* first, const char* second, bool second_allowed);

}  // namespace dlattn::py
