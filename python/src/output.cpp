#include "output.h"

#include <cstring>

namespace dlattn::py {

namespace {

void set_error(void* context, const char* kind, const char* message) {
  // The first line: torch adds stack traces.
  *static_cast<std::string*>(context) = std::string(kind) + ": " + std::string(message, std::strcspn(message, "\n"));
}

// torch and others with the C exchange API: one call, in the framework's own allocator.
Output from_exchange_api(Call& call, const dlpack::ExchangeApi& api, const TensorView& like, DType dtype,
                         const int64_t* shape, int ndim) {
  dlpack::Tensor prototype{};
  prototype.device = {like.device.type == DeviceType::kCPU ? dlpack::kCPU : dlpack::kCUDA, like.device.index};
  prototype.ndim = ndim;
  prototype.dtype = to_dlpack(dtype);
  prototype.shape = const_cast<int64_t*>(shape);
  dlpack::ManagedTensorVersioned* managed = nullptr;
  std::string error;
  if (api.allocate(&prototype, &managed, &error, set_error) != 0 || managed == nullptr) {
    if (PyErr_Occurred()) nb::raise_python_error();
    throw std::runtime_error(std::string(call.op()) + ": the result could not be allocated: " + error);
  }
  Output output;
  output.view.data = static_cast<char*>(managed->tensor.data) + managed->tensor.byte_offset;
  output.view.dtype = dtype;
  output.view.device = like.device;
  output.view.ndim = ndim;
  int64_t packed = 1;
  for (int i = ndim - 1; i >= 0; --i) {
    output.view.shape[i] = shape[i];
    output.view.strides[i] = managed->tensor.strides != nullptr ? managed->tensor.strides[i] : packed;
    packed *= shape[i];
  }
  void* object = nullptr;
  if (api.object_from_managed(managed, &object) != 0) nb::raise_python_error();
  output.object = nb::steal(static_cast<PyObject*>(object));
  return output;
}

nb::object shape_tuple(const int64_t* shape, int ndim) {
  nb::object tuple = nb::steal(PyTuple_New(ndim));
  for (int i = 0; i < ndim; ++i) PyTuple_SetItem(tuple.ptr(), i, PyLong_FromLongLong(shape[i]));
  return tuple;
}

// The module whose empty() makes arrays like this one; null if nobody knows.
nb::object namespace_of(const Producer& producer, nb::handle like) {
  switch (producer.framework) {
    case Framework::kNumPy:
    case Framework::kNumPyMasked:
    case Framework::kJax:
      return nb::module_::import_("numpy");
    case Framework::kCuPy:
      return nb::module_::import_("cupy");
    case Framework::kTorch:
      return nb::module_::import_("torch");
    default:
      break;
  }
  nb::object method = get_or_null(like, names().array_namespace);
  return method.is_valid() ? method() : nb::object();
}

}  // namespace

nb::object Output::finish() {
  if (!jax_device.is_valid()) return std::move(object);
  return nb::module_::import_("jax").attr("device_put")(object, jax_device);
}

Output given_output(Call& call, const char* name, nb::handle object) {
  return {nb::borrow(object), call.output(name, object), {}};
}

namespace {

// By the framework's own empty().
Output from_namespace(Call& call, Producer& producer, nb::handle like, const TensorView& like_view, DType dtype,
                      const int64_t* shape, int ndim) {
  if (!producer.empty.is_valid()) {
    const nb::object xp = namespace_of(producer, like);
    if (!xp.is_valid()) {
      call.fail("out is None, expected an array (= no way is known to make a new " + type_text(like) + ")");
    }
    producer.float32 = xp.attr("float32");
    producer.empty = xp.attr("empty");
  }
  const nb::object shape_object = shape_tuple(shape, ndim);
  const nb::object dtype_object = dtype == like_view.dtype ? get(like, names().dtype) : producer.float32;
  if (dtype != like_view.dtype && dtype != DType::kFloat32) {
    call.fail(std::string("a new array of dtype ") + dtype_name(dtype) + " cannot be made from " + type_text(like));
  }
  Output output;
  if (producer.framework == Framework::kOther) {  // the array API standard
    const nb::object device = get(like, names().device);
    PyObject* args[] = {shape_object.ptr(), dtype_object.ptr(), device.ptr()};
    output.object = call_function(producer.empty.ptr(), args, 1, names().kw_dtype_device);
  } else {
    PyObject* args[] = {shape_object.ptr(), dtype_object.ptr()};
    output.object = call_function(producer.empty.ptr(), args, 1, names().kw_dtype);
  }
  if (producer.framework == Framework::kJax) {
    // Written as a NumPy array that nobody else holds, then handed to JAX.
    const nb::object devices = get(like, names().devices)();
    output.jax_device = nb::steal(PyIter_Next(nb::iter(devices).ptr()));
  }
  output.view = call.output("out", output.object);
  return output;
}

}  // namespace

Output new_output(Call& call, nb::handle like, const TensorView& like_view, DType dtype, const int64_t* shape,
                  int ndim) {
  Producer& producer = producer_of(like);
  if (producer.api != nullptr) return from_exchange_api(call, *producer.api, like_view, dtype, shape, ndim);
  try {
    return from_namespace(call, producer, like, like_view, dtype, shape, ndim);
  } catch (nb::python_error& error) {
    if (!is_ordinary_error(error)) throw;
    const std::string text = std::string(call.op()) + ": out is None, expected an array (= a new " + type_text(like) +
                             " cannot be made: " + error_text(error) + ")";
    nb::raise_from(error, PyExc_ValueError, "%s", text.c_str());
  }
}

OutArguments parse_out(const Call& call, nb::handle out, const char* first, const char* second, bool second_allowed) {
  OutArguments result{nb::none(), nb::none()};
  if (!PyTuple_Check(out.ptr()) && !PyList_Check(out.ptr())) {
    result.out = nb::borrow(out);
    return result;
  }
  const nb::object sequence = nb::borrow(out);
  const size_t length = nb::len(sequence);
  if (!second_allowed) {
    call.fail("out is " + a_text(out) + ", expected one array (= return_lse is False)");
  }
  if (length != 2) {
    call.fail("out has " + std::to_string(length) + " items, expected 2 (= (" + first + ", " + second + "))");
  }
  result.out = sequence[0];
  result.lse = sequence[1];
  return result;
}

}  // namespace dlattn::py
