// Results, made by the caller's framework.
#pragma once

#include "array.h"

namespace dlattn::py {

// A result array: the object to return and the memory to write.
struct Output {
  nb::object object;
  TensorView view;
  nb::object jax_device{};   // set: `object` is a NumPy array that becomes a JAX array on this device
  Call* jax_call = nullptr;  // set: `object` is a JAX array in CUDA memory, written behind JAX's back; see jax.h

  // What the caller gets.
  nb::object finish();
};

// CUDA memory for partial results, from the framework of `like`, or else of `out`, or else one that is loaded. Given
// back, in the order of the stream, when it is destroyed, which must be after the launch.
class Workspace {
 public:
  Workspace() = default;
  Workspace(Call& call, nb::handle like, nb::handle out, const TensorView& like_view, size_t bytes);
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  ~Workspace();

  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
  dlpack::ManagedTensorVersioned* managed_ = nullptr;
  nb::object object_;
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
