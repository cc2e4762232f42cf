// Streams: None (the producer's current stream), a CUDA handle, or any object with __cuda_stream__.
#include "array.h"

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

// The stream that the producer of a CUDA array works on now.
uintptr_t Call::stream_of(const Argument& argument) {
  constexpr uintptr_t kLegacyDefault = 1;
  if (argument.producer->framework != Framework::kCuPy) return kLegacyDefault;
  const nb::object stream = nb::module_::import_("cupy").attr("cuda").attr("get_current_stream")();
  const auto handle = nb::cast<uintptr_t>(stream.attr("ptr"));
  return handle == 0 ? kLegacyDefault : handle;
}

}  // namespace dlattn::py
