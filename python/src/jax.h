// JAX arrays in CUDA memory.
//
// XLA's streams are its own, and it knows nothing of work that others queue. So a call runs on a stream that XLA can
// wait for (Device.get_stream_for_external_ready_events(), or the caller's), which waits for the inputs by their
// __dlpack__(stream=); a result is written into a fresh array that nobody else holds, imported as a DLPack tensor, which
// makes XLA wait, and copied by XLA. XLA frees the tensor when the copy is done; it holds all tensors of the call,
// because their memory may be given away at once when Python lets go of them.
#pragma once

#include <memory>

#include "array.h"

namespace dlattn::py {

nb::object jax_device_of(nb::handle array);

// The contents of a tensor of `call` after its work, as a new JAX array.
nb::object to_jax(Call& call, const TensorView& view);

// For a call that leaves no result to JAX: its JAX arrays are not freed before its work is done.
void keep_for_jax(Call& call);

}  // namespace dlattn::py
