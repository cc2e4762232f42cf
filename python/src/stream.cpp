// Streams: None (the producer's current stream), a CUDA handle, or any object with __cuda_stream__.
#include "array.h"
#include "backend.h"
#include "dlattn/runtime.h"
#include "jax.h"

namespace dlattn::py {

namespace {

bool handle_from_int(nb::handle object, uintptr_t* result) {
  if (!PyLong_Check(object.ptr()) || PyBool_Check(object.ptr())) return false;
  const unsigned long long value = PyLong_AsUnsignedLongLong(object.ptr());
  if (value == static_cast<unsigned long long>(-1) && PyErr_Occurred()) {
    PyErr_Clear();
    return false;
  }
  *result = static_cast<uintptr_t>(value);
  return true;
}

}  // namespace

bool parse_stream(const char* op, nb::handle object, uintptr_t* stream) {
  if (object.is_none()) return false;
  if (handle_from_int(object, stream)) return true;
  // The protocol of cuda.core: (version, handle), by a method (or, in early versions, an attribute).
  nb::object protocol = get_or_null(object, names().cuda_stream);
  if (protocol.is_valid()) {
    if (PyCallable_Check(protocol.ptr())) protocol = protocol();
    if (PyTuple_Check(protocol.ptr()) && PyTuple_Size(protocol.ptr()) == 2 &&
        handle_from_int(PyTuple_GetItem(protocol.ptr(), 1), stream)) {
      return true;
    }
  }
  throw InvalidArgument(std::string(op) + ": stream is " + repr_text(object) +
                        ", expected None, a CUDA stream handle (an int >= 0) or an object with __cuda_stream__");
}

uintptr_t current_stream(Producer& producer, nb::handle object, int device) {
  constexpr uintptr_t kLegacyDefault = 1;
  if (producer.api != nullptr) {
    void* current = nullptr;
    if (producer.api->current_stream(dlpack::kCUDA, device, &current) != 0) nb::raise_python_error();
    return reinterpret_cast<uintptr_t>(current);
  }
  if (producer.framework == Framework::kTorch) {  // before 2.10
    return nb::cast<uintptr_t>(nb::module_::import_("torch.cuda").attr("current_stream")(device).attr("cuda_stream"));
  }
  if (producer.framework == Framework::kCuPy) {
    if (!producer.get_stream.is_valid()) {
      producer.get_stream = nb::module_::import_("cupy.cuda").attr("get_current_stream");
    }
    return nb::cast<uintptr_t>(producer.get_stream(device).attr("ptr"));
  }
  if (producer.framework == Framework::kJax) {
    // JAX's own streams cannot be had; any stream can wait for its arrays. This one's work JAX can wait for.
    return nb::cast<uintptr_t>(jax_device_of(object).attr("get_stream_for_external_ready_events")());
  }
  return kLegacyDefault;
}

void Call::use_stream(const Argument& argument, uintptr_t stream, int device) {
  if (!stream_known_) {
    stream_known_ = true;
    stream_ = stream;
    return;
  }
  if (same_stream(stream, stream_) || explanation_ != nullptr || !cuda_compiled()) return;
  if (last_ordered_.stream != stream || last_ordered_.device != device) {
    cuda_order_streams(device, reinterpret_cast<Stream>(stream), this->stream());
    last_ordered_ = {stream, device};
  }
  if (argument.writable && !stream_given_) waiting_.at(num_waiting_++) = {stream, device};
}

void Call::order_outputs() const {
  for (int i = 0; i < num_waiting_; ++i) {
    cuda_order_streams(waiting_[i].device, stream(), reinterpret_cast<Stream>(waiting_[i].stream));
  }
}

bool Call::on_another_stream(nb::handle object, int device) const {
  return !same_stream(current_stream(producer_of(object), object, device), stream_);
}

nb::object jax_device_of(nb::handle array) {
  return nb::steal(PyIter_Next(nb::iter(get(array, names().devices)()).ptr()));
}

}  // namespace dlattn::py
