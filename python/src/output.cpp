#include "output.h"

#include <cstring>

#include "jax.h"

namespace dlattn::py {

namespace {

void set_error(void* context, const char* kind, const char* message) {
  // The first line: torch adds stack traces.
  *static_cast<std::string*>(context) = std::string(kind) + ": " + std::string(message, std::strcspn(message, "\n"));
}

// Torch and others with the C exchange API: one call, in the framework's own allocator.
dlpack::ManagedTensorVersioned* allocate(const Call& call, const dlpack::ExchangeApi& api, Device device, DType dtype,
                                         const int64_t* shape, int ndim) {
  dlpack::Tensor prototype{};
  prototype.device = {device.type == DeviceType::kCPU ? dlpack::kCPU : dlpack::kCUDA, device.index};
  prototype.ndim = ndim;
  prototype.dtype = to_dlpack(dtype);
  prototype.shape = const_cast<int64_t*>(shape);
  dlpack::ManagedTensorVersioned* managed = nullptr;
  std::string error;
  if (api.allocate(&prototype, &managed, &error, set_error) != 0 || managed == nullptr) {
    if (PyErr_Occurred()) nb::raise_python_error();
    throw std::runtime_error(std::string(call.op()) + ": the result could not be allocated: " + error);
  }
  return managed;
}

void* data_of(const dlpack::Tensor& tensor) { return static_cast<char*>(tensor.data) + tensor.byte_offset; }

Output from_exchange_api(Call& call, const dlpack::ExchangeApi& api, const TensorView& like, DType dtype,
                         const int64_t* shape, int ndim) {
  dlpack::ManagedTensorVersioned* managed = allocate(call, api, like.device, dtype, shape, ndim);
  Output output;
  output.view.data = data_of(managed->tensor);
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
    case Framework::kNumba:
      return nb::module_::import_("numpy");  // for dtypes
    default:
      break;
  }
  nb::object method = get_or_null(like, names().array_namespace);
  return method.is_valid() ? method() : nb::object();
}

}  // namespace

nb::object Output::finish() {
  if (jax_call != nullptr && view.numel() > 0) return to_jax(*jax_call, view);
  if (!jax_device.is_valid()) return std::move(object);
  return nb::module_::import_("jax").attr("device_put")(object, jax_device);
}

Output given_output(Call& call, const char* name, nb::handle object) {
  return {nb::borrow(object), call.output(name, object)};
}

namespace {

// Entered Python context managers.
class Contexts {
 public:
  Contexts() = default;
  Contexts(const Contexts&) = delete;
  Contexts& operator=(const Contexts&) = delete;
  ~Contexts() {
    while (count_ > 0) {
      PyObject* none = Py_None;
      PyObject* args[] = {entered_[--count_].ptr(), none, none, none};
      try {
        call_method(names().leave, args, 4);
      } catch (nb::python_error& error) {
        error.discard_as_unraisable("dlattn");
      }
    }
  }

  void enter(nb::object manager) {
    PyObject* args[] = {manager.ptr()};
    call_method(names().enter, args, 1);
    entered_[count_++] = std::move(manager);
  }

 private:
  int count_ = 0;
  std::array<nb::object, 2> entered_;
};

// What a new CUDA array of a framework must be made under: the device (torch's allocator is told it), and the stream
// that the caller has named, so that the memory may be used on it at once and is reused in its order.
void enter_contexts(Contexts& contexts, const Call& call, const Producer& producer, nb::handle like, int device) {
  if (producer.framework == Framework::kCuPy) {
    const nb::module_ cuda = nb::module_::import_("cupy.cuda");
    if (nb::cast<int>(cuda.attr("runtime").attr("getDevice")()) != device) {
      contexts.enter(cuda.attr("Device")(device));
    }
  } else if (producer.framework == Framework::kNumba) {
    contexts.enter(nb::module_::import_("numba.cuda").attr("gpus")[device]);
  }
  const bool has_streams = producer.framework == Framework::kTorch || producer.framework == Framework::kCuPy;
  if (!has_streams || !call.on_another_stream(like, device)) return;
  const auto handle = reinterpret_cast<uintptr_t>(call.stream());
  if (producer.framework == Framework::kTorch) {
    const nb::module_ cuda = nb::module_::import_("torch.cuda");
    contexts.enter(cuda.attr("stream")(handle <= 1 ? cuda.attr("default_stream")(device)
                                                   : cuda.attr("ExternalStream")(handle, device)));
  } else {
    const nb::module_ cuda = nb::module_::import_("cupy.cuda");
    contexts.enter(handle <= 1 ? nb::object(cuda.attr("Stream").attr("null")) : cuda.attr("ExternalStream")(handle));
  }
}

// A JAX array in CUDA memory that nobody else holds.
Output from_jax(Call& call, nb::handle like, const TensorView& like_view, DType dtype, const int64_t* shape, int ndim) {
  const nb::module_ jnp = nb::module_::import_("jax.numpy");
  Output output;
  output.object = jnp.attr("empty")(
      shape_tuple(shape, ndim),
      nb::arg("dtype") = dtype == like_view.dtype ? get(like, names().dtype) : nb::object(jnp.attr("float32")),
      nb::arg("device") = jax_device_of(like));
  output.view = call.output("out", output.object);
  output.view.read_only = false;
  output.jax_call = &call;
  return output;
}

// By the framework's own empty().
Output from_namespace(Call& call, Producer& producer, nb::handle like, const TensorView& like_view, DType dtype,
                      const int64_t* shape, int ndim) {
  if (!producer.empty.is_valid()) {
    const nb::object xp = namespace_of(producer, like);
    if (!xp.is_valid()) {
      call.fail("out is None, expected an array (= no way is known to make a new " + type_text(like) + ")");
    }
    producer.float32 = xp.attr("float32");
    producer.empty = producer.framework == Framework::kNumba ? nb::module_::import_("numba.cuda").attr("device_array")
                                                             : xp.attr("empty");
  }
  const nb::object shape_object = shape_tuple(shape, ndim);
  const nb::object dtype_object = dtype == like_view.dtype ? get(like, names().dtype) : producer.float32;
  Output output;
  if (producer.framework == Framework::kOther || producer.framework == Framework::kTorch) {  // the array API standard
    const nb::object device = get(like, names().device);
    PyObject* args[] = {shape_object.ptr(), dtype_object.ptr(), device.ptr()};
    output.object = call_function(producer.empty.ptr(), args, 1, names().kw_dtype_device);
  } else {
    PyObject* args[] = {shape_object.ptr(), dtype_object.ptr()};
    output.object = call_function(producer.empty.ptr(), args, 1, names().kw_dtype);
  }
  if (producer.framework == Framework::kJax) {
    // Written as a NumPy array that nobody else holds, then handed to JAX.
    output.jax_device = jax_device_of(like);
  }
  output.view = call.output("out", output.object);
  return output;
}

// dtype: like's, or float32.
Output make(Call& call, Producer& producer, nb::handle like, const TensorView& like_view, DType dtype,
            const int64_t* shape, int ndim) {
  const bool on_cuda = like_view.device.type == DeviceType::kCUDA;
  Contexts contexts;
  if (on_cuda) enter_contexts(contexts, call, producer, like, like_view.device.index);
  if (producer.api != nullptr) return from_exchange_api(call, *producer.api, like_view, dtype, shape, ndim);
  try {
    return on_cuda && producer.framework == Framework::kJax
               ? from_jax(call, like, like_view, dtype, shape, ndim)
               : from_namespace(call, producer, like, like_view, dtype, shape, ndim);
  } catch (nb::python_error& error) {
    if (!is_ordinary_error(error)) throw;
    const std::string text = std::string(call.op()) + ": out is None, expected an array (= a new " + type_text(like) +
                             " cannot be made: " + error_text(error) + ")";
    nb::raise_from(error, PyExc_ValueError, "%s", text.c_str());
  }
}

}  // namespace

Output new_output(Call& call, nb::handle like, const TensorView& like_view, DType dtype, const int64_t* shape,
                  int ndim) {
  Output output = make(call, producer_of(like), like, like_view, dtype, shape, ndim);
  if (output.jax_call != nullptr && output.view.numel() > 0) call.expect_jax_result();
  return output;
}

namespace {

bool makes_arrays(const Producer& producer, nb::handle object) {
  return producer.api != nullptr || producer.framework != Framework::kOther ||
         get_or_null(object, names().array_namespace).is_valid();
}

// Whose framework gives workspace: the array itself or an empty one.
nb::object workspace_maker(const Call& call, nb::handle like, nb::handle out, int device) {
  for (const nb::handle object : {like, out}) {
    if (object.is_valid() && makes_arrays(producer_of(object), object)) return nb::borrow(object);
  }
  const std::string place = "cuda:" + std::to_string(device);
  if (const nb::handle torch = loaded_module("torch"); torch.is_valid()) {
    return torch.attr("empty")(0, nb::arg("device") = place);
  }
  if (const nb::handle cupy = loaded_module("cupy"); cupy.is_valid()) return cupy.attr("empty")(0);
  call.fail("no way is known to make memory for partial results beside a " + type_text(like) +
            ", expected arrays of another framework (= or that PyTorch or CuPy is imported)");
}

}  // namespace

Workspace::Workspace(Call& call, nb::handle like, nb::handle out, const TensorView& like_view, size_t bytes) {
  constexpr size_t kAlignment = 256;
  const int device = like_view.device.index;
  const nb::object maker = workspace_maker(call, like, out, device);
  Producer& producer = producer_of(maker);
  // The allocators that we know give aligned memory.
  const size_t slack = producer.framework == Framework::kOther ? kAlignment : 0;
  const auto count = static_cast<int64_t>((bytes + slack + sizeof(float) - 1) / sizeof(float));
  if (producer.api != nullptr) {
    Contexts contexts;
    enter_contexts(contexts, call, producer, maker, device);
    managed_ = allocate(call, *producer.api, like_view.device, DType::kFloat32, &count, 1);
    data_ = data_of(managed_->tensor);
  } else {
    TensorView view = like_view;
    view.dtype = DType::kBool;  // not float32, so that float32 is looked up rather than taken from q's own dtype
    Output output = make(call, producer, maker, view, DType::kFloat32, &count, 1);
    data_ = output.view.data;
    object_ = std::move(output.object);
  }
  const auto address = reinterpret_cast<uintptr_t>(data_);
  if (slack > 0) data_ = reinterpret_cast<void*>((address + kAlignment - 1) / kAlignment * kAlignment);
}

Workspace::~Workspace() {
  if (managed_ != nullptr && managed_->deleter != nullptr) managed_->deleter(managed_);
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
