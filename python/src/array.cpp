#include "array.h"

#include <cstring>
#include <typeinfo>
#include <utility>

namespace dlattn::py {

namespace {

thread_local nb::object* t_explanation = nullptr;

const char* expected_dtypes(Role role) {
  switch (role) {
    case Role::kMask:
      return "bool, float32, float16 or bfloat16";
    case Role::kIndex:
      return "int32 or int64";
    default:
      return "float32, float16 or bfloat16";
  }
}

bool from_dlpack_dtype(const dlpack::DataType& dtype, DType* result) {
  if (dtype.lanes != 1) return false;
  switch (dtype.code << 8 | dtype.bits) {
    case dlpack::kFloat << 8 | 32:
      *result = DType::kFloat32;
      return true;
    case dlpack::kFloat << 8 | 16:
      *result = DType::kFloat16;
      return true;
    case dlpack::kBfloat << 8 | 16:
      *result = DType::kBFloat16;
      return true;
    case dlpack::kBool << 8 | 8:
      *result = DType::kBool;
      return true;
    case dlpack::kInt << 8 | 32:
      *result = DType::kInt32;
      return true;
    case dlpack::kInt << 8 | 64:
      *result = DType::kInt64;
      return true;
    default:
      return false;
  }
}

bool is_numpy(const Producer& producer) {
  return producer.framework == Framework::kNumPy || producer.framework == Framework::kNumPyMasked;
}

// Whether a NumPy dtype is ml_dtypes' bfloat16. dtype.name is slow, so it is asked once for each class of dtypes; there
// are a few dozen, while dtype objects are made at will (each unpickled array may have its own).
bool is_ml_bfloat16(const nb::object& dtype) {
  struct Known {
    PyTypeObject* type;  // kept alive
    bool is_bfloat16;
  };
  constexpr int kMaxKnown = 64;
  static Known known[kMaxKnown];
  static int num_known = 0;
  PyTypeObject* type = Py_TYPE(dtype.ptr());
  for (int i = 0; i < num_known; ++i) {
    if (known[i].type == type) return known[i].is_bfloat16;
  }
  const nb::object name = get(dtype, names().name);
  const bool result = PyUnicode_CompareWithASCIIString(name.ptr(), "bfloat16") == 0;
  if (num_known < kMaxKnown) {
    Py_IncRef(reinterpret_cast<PyObject*>(type));
    known[num_known++] = {type, result};
  }
  return result;
}

}  // namespace

ExplainScope::ExplainScope(nb::object* result) { t_explanation = result; }
ExplainScope::~ExplainScope() { t_explanation = nullptr; }

Call::Call(const char* op, nb::handle stream) : op_(op), explanation_(std::exchange(t_explanation, nullptr)) {
  if (!stream.is_none()) stream_known_ = stream_given_ = parse_stream(op, stream, &stream_);
}

Call::~Call() {
  for (int i = 0; i < num_kept_; ++i) Py_DecRef(kept_[i]);
}

void Call::keep(nb::object object) {
  if (num_kept_ < static_cast<int>(kept_.size())) {
    kept_[num_kept_++] = object.release().ptr();
  } else {
    more_kept_.push_back(std::move(object));
  }
}

std::shared_ptr<DlpackTensors> Call::take_tensors() {
  if (tensors_ == nullptr) {
    tensors_ = std::make_shared<DlpackTensors>();
    for (int i = 0; i < num_kept_; ++i) tensors_->take(kept_[i]);
    for (const nb::object& object : more_kept_) tensors_->take(object);
  }
  return tensors_;
}

void DlpackTensors::take(nb::handle object) {
  PyObject* p = object.ptr();
  if (PyCapsule_IsValid(p, "dltensor")) {
    plain_.push_back(static_cast<dlpack::ManagedTensor*>(PyCapsule_GetPointer(p, "dltensor")));
    PyCapsule_SetName(p, "used_dltensor");
  } else if (PyCapsule_IsValid(p, "dltensor_versioned")) {
    versioned_.push_back(static_cast<dlpack::ManagedTensorVersioned*>(PyCapsule_GetPointer(p, "dltensor_versioned")));
    PyCapsule_SetName(p, "used_dltensor_versioned");
  }
}

DlpackTensors::~DlpackTensors() {
  for (dlpack::ManagedTensor* tensor : plain_) {
    if (tensor->deleter != nullptr) tensor->deleter(tensor);
  }
  for (dlpack::ManagedTensorVersioned* tensor : versioned_) {
    if (tensor->deleter != nullptr) tensor->deleter(tensor);
  }
}

void Call::fail(const std::string& text) const { throw InvalidArgument(std::string(op_) + ": " + text); }

TensorView Call::input(const char* name, nb::handle object, Role role) {
  return import({name, object, role, false, nullptr});
}

TensorView Call::output(const char* name, nb::handle object, Role role) {
  return import({name, object, role, true, nullptr});
}

TensorView Call::import(Argument argument) {
  if (argument.object.is_none()) fail(std::string(argument.name) + " is None, expected an array");
  TensorView view;
  try {
    argument.producer = &producer_of(argument.object);
    const Producer& producer = *argument.producer;
    if (producer.framework == Framework::kNumPyMasked && is_true(argument.object.attr("mask").attr("any")())) {
      fail(std::string(argument.name) + " is a masked array with masked elements, expected none (= they would count)");
    }
    if (is_numpy(producer)) {
      view = is_ml_bfloat16(get(argument.object, names().dtype)) ? from_array_struct(argument, true)
                                                                 : from_dlpack(argument);
    } else {
      if (producer.framework == Framework::kTorch) check_torch(argument);
      if (producer.framework == Framework::kJaxTracer) {
        fail(std::string(argument.name) +
             " is a JAX tracer: inside jit, vmap or grad is not supported yet, call it outside");
      }
      if (producer.api != nullptr) {
        view = from_exchange_api(argument);
      } else if (producer.has_dlpack) {
        view = from_dlpack(argument);
      } else if (producer.has_cuda_interface) {
        view = from_cuda_array_interface(argument);
      } else if (nb::object dlpack = get_or_null(argument.object, names().dlpack); dlpack.is_valid()) {
        view = from_dlpack(argument);  // set on the object, not on its type
      } else {
        fail(std::string(argument.name) + " is " + a_text(argument.object) +
             ", expected an array with __dlpack__ (NumPy, PyTorch, JAX, CuPy, ...)");
      }
    }
  } catch (nb::python_error& error) {
    if (!is_ordinary_error(error)) throw;
    if (argument.producer != nullptr && is_numpy(*argument.producer)) fail_if_odd_dtype(argument);
    const std::string text = std::string(op_) + ": " + argument.name + " (" + type_text(argument.object) +
                             ") cannot be read as an array: " + error_text(error);
    nb::raise_from(error, PyExc_ValueError, "%s", text.c_str());
  } catch (const std::bad_cast&) {  // a protocol's answer is not of the type that it should be
    fail(std::string(argument.name) + " (" + type_text(argument.object) +
         ") cannot be read as an array: its array protocol gives values of wrong types");
  }
  check(argument, view);
  if (argument.producer->framework == Framework::kJax) {
    view.read_only = true;  // whatever the capsule says
    if (view.device.type == DeviceType::kCUDA && view.numel() > 0 && !jax_element_.given()) {
      jax_element_ = view;
      jax_element_.ndim = 1;
      jax_element_.shape[0] = jax_element_.strides[0] = 1;
    }
  }
  return view;
}

// NumPy's refusals do not say what the dtype is.
void Call::fail_if_odd_dtype(const Argument& argument) const {
  const std::string dtype = nb::cast<std::string>(nb::str(get(argument.object, names().dtype)));
  for (const char* known : {"float32", "float16", "bfloat16", "bool", "int32", "int64"}) {
    if (dtype == known) return;
  }
  fail(std::string(argument.name) + ".dtype is " + dtype + ", expected " + expected_dtypes(argument.role));
}

void Call::check_torch(const Argument& argument) {
  PyObject* object = argument.object.ptr();
  if (call_method(names().is_neg, &object, 1).ptr() == Py_True) {
    fail(std::string(argument.name) +
         " is a torch view with the negative bit set, expected plain numbers (= x.resolve_neg())");
  }
  if (argument.writable) torch_outputs_.at(num_torch_outputs_++) = object;
  if (get(argument.object, names().requires_grad).ptr() != Py_True || needs_grad()) return;
  const nb::object torch = nb::borrow(loaded_module("torch"));
  if (is_true(torch.attr("is_grad_enabled")())) {
    if (argument.writable) {
      fail(std::string(argument.name) +
           " is a torch tensor that requires grad, expected one that does not (= it is written)");
    }
    needs_grad_ = argument.name;
  }
}

namespace {

// Of torch.autograd.graph.increment_version(), which takes 0.15 us of Python to come to torch._C's function; that one
// has not always taken tuples.
PyObject* find_increment_version() {
  const nb::object torch_c = nb::module_::import_("torch._C");
  const nb::object function = nb::steal(PyObject_GetAttrString(torch_c.ptr(), "_increment_version"));
  const nb::object no_tensors = nb::steal(PyTuple_New(0));
  const nb::object result = nb::steal(
      function.is_valid() ? PyObject_CallFunctionObjArgs(function.ptr(), no_tensors.ptr(), nullptr) : nullptr);
  if (result.is_valid()) return nb::object(function).release().ptr();
  clear_ordinary_error();
  return nb::object(nb::module_::import_("torch.autograd.graph").attr("increment_version")).release().ptr();
}

}  // namespace

void Call::tell_torch() const {
  static PyObject* increment_version = nullptr;  // for the life of the process
  if (increment_version == nullptr) increment_version = find_increment_version();
  nb::object tensors = nb::steal(PyTuple_New(num_torch_outputs_));
  if (!tensors.is_valid()) nb::raise_python_error();
  for (int i = 0; i < num_torch_outputs_; ++i) {
    PyTuple_SetItem(tensors.ptr(), i, nb::borrow(torch_outputs_[i]).release().ptr());
  }
  PyObject* args[] = {tensors.ptr()};
  call_function(increment_version, args, 1);
}

TensorView Call::from_exchange_api(const Argument& argument) {
  const dlpack::ExchangeApi& api = *argument.producer->api;
  dlpack::Tensor tensor;
  nb::object owner;
  bool read_only = false;
  if (api.tensor_from_object != nullptr) {
    if (api.tensor_from_object(argument.object.ptr(), &tensor) != 0) nb::raise_python_error();
  } else {
    dlpack::ManagedTensorVersioned* managed = nullptr;
    if (api.managed_from_object(argument.object.ptr(), &managed) != 0) nb::raise_python_error();
    keep(nb::capsule(managed, [](void* p) noexcept {
      auto* self = static_cast<dlpack::ManagedTensorVersioned*>(p);
      if (self->deleter != nullptr) self->deleter(self);
    }));
    tensor = managed->tensor;
    read_only = (managed->flags & dlpack::kFlagReadOnly) != 0;
  }
  if (tensor.device.type == dlpack::kCUDA || tensor.device.type == dlpack::kCUDAManaged) {
    const int device = tensor.device.index;
    use_stream(argument, current_stream(*argument.producer, argument.object, device), device);
  }
  return from_tensor(argument, tensor, read_only);
}

TensorView Call::from_dlpack(const Argument& argument) {
  const Producer& producer = *argument.producer;
  bool with_stream = false;
  int64_t stream = 0;
  if (!is_numpy(producer)) {
    const nb::object device = argument.object.attr("__dlpack_device__")();
    const auto type = nb::cast<int>(device[0]);
    if (type == dlpack::kCUDA || type == dlpack::kCUDAManaged) {
      const int index = nb::cast<int>(device[1]);
      with_stream = true;
      if (producer.framework == Framework::kCuPy || producer.framework == Framework::kTorch) {
        use_stream(argument, current_stream(*argument.producer, argument.object, index), index);
        stream = -1;  // in order already
      } else {
        if (!stream_known_) {
          stream_known_ = true;
          stream_ = current_stream(*argument.producer, argument.object, index);
        }
        stream = stream_ == 0 ? 1 : static_cast<int64_t>(stream_);  // DLPack has no stream 0
      }
    }
  }
  nb::object capsule;
  try {
    capsule = export_capsule(argument, with_stream, stream);
  } catch (nb::python_error& error) {
    // NumPy before 2.1 cannot export read-only arrays by DLPack.
    if (!is_numpy(producer) || !producer.unversioned || !error.matches(PyExc_BufferError)) throw;
    return from_array_struct(argument, false);
  }
  return from_capsule(argument, std::move(capsule));
}

nb::object Call::export_capsule(const Argument& argument, bool with_stream, int64_t stream) {
  const Names& n = names();
  Producer& producer = *argument.producer;
  PyObject* object = argument.object.ptr();
  const nb::object stream_object = with_stream ? nb::steal(PyLong_FromLongLong(stream)) : nb::object();
  if (!producer.unversioned) {
    try {
      if (!with_stream) {
        PyObject* args[] = {object, n.max_version};
        return call_method(n.dlpack, args, 1, n.kw_version);
      }
      PyObject* args[] = {object, stream_object.ptr(), n.max_version};
      return call_method(n.dlpack, args, 1, n.kw_stream_version);
    } catch (nb::python_error& error) {
      if (!error.matches(PyExc_TypeError)) throw;  // it may not know max_version
    }
  }
  nb::object result;
  if (with_stream) {
    PyObject* args[] = {object, stream_object.ptr()};
    result = call_method(n.dlpack, args, 1, n.kw_stream);
  } else {
    result = call_method(n.dlpack, &object, 1);
  }
  producer.unversioned = true;
  return result;
}

TensorView Call::from_capsule(const Argument& argument, nb::object capsule) {
  // The capsule stays unconsumed: it owns the tensor and lets go of it when the call is over.
  PyObject* p = capsule.ptr();
  TensorView view;
  if (PyCapsule_IsValid(p, "dltensor_versioned")) {
    auto* managed = static_cast<dlpack::ManagedTensorVersioned*>(PyCapsule_GetPointer(p, "dltensor_versioned"));
    if (managed->version.major != dlpack::kMajor) {
      fail(std::string(argument.name) + ".__dlpack__ speaks DLPack " + std::to_string(managed->version.major) +
           ", expected version 1");
    }
    view = from_tensor(argument, managed->tensor, (managed->flags & dlpack::kFlagReadOnly) != 0);
  } else if (PyCapsule_IsValid(p, "dltensor")) {
    auto* managed = static_cast<dlpack::ManagedTensor*>(PyCapsule_GetPointer(p, "dltensor"));
    view = from_tensor(argument, managed->tensor, false);
  } else {
    fail(std::string(argument.name) + ".__dlpack__ gave " + a_text(capsule) + ", expected a fresh DLPack capsule");
  }
  keep(std::move(capsule));
  return view;
}

TensorView Call::from_tensor(const Argument& argument, const dlpack::Tensor& tensor, bool read_only) {
  TensorView view;
  if (!from_dlpack_dtype(tensor.dtype, &view.dtype)) {
    fail(std::string(argument.name) + ".dtype is " + dtype_name(tensor.dtype) + ", expected " +
         expected_dtypes(argument.role));
  }
  if (tensor.ndim < 0 || tensor.ndim > kMaxDims) {
    fail(std::string(argument.name) + ".ndim is " + std::to_string(tensor.ndim) + ", expected at most " +
         std::to_string(kMaxDims));
  }
  switch (tensor.device.type) {
    case dlpack::kCPU:
    case dlpack::kCUDAHost:
      view.device = {DeviceType::kCPU, 0};
      break;
    case dlpack::kCUDA:
    case dlpack::kCUDAManaged:
      view.device = {DeviceType::kCUDA, tensor.device.index};
      device_ = tensor.device.index;
      break;
    default:
      fail(std::string(argument.name) + ".device is of DLPack type " + std::to_string(tensor.device.type) +
           ", expected the CPU (1) or CUDA (2)");
  }
  view.ndim = tensor.ndim;
  view.read_only = read_only;
  view.data = tensor.data == nullptr ? nullptr : static_cast<char*>(tensor.data) + tensor.byte_offset;
  int64_t packed = 1;
  for (int i = tensor.ndim - 1; i >= 0; --i) {
    if (tensor.shape[i] < 0) {
      fail(std::string(argument.name) + ".shape[" + std::to_string(i) + "] is " + std::to_string(tensor.shape[i]) +
           ", expected at least 0");
    }
    view.shape[i] = tensor.shape[i];
    view.strides[i] = tensor.strides != nullptr ? tensor.strides[i] : packed;
    packed *= tensor.shape[i];
  }
  return view;
}

void Call::check(const Argument& argument, TensorView& view) const {
  const int64_t numel = view.numel();
  if (numel == 0) return;
  if (view.data == nullptr) {
    fail(std::string(argument.name) + " (" + type_text(argument.object) + ") has no memory behind its " +
         std::to_string(numel) + " elements, expected a real array (= not a fake, meta or wrapped one)");
  }
  const auto address = reinterpret_cast<uintptr_t>(view.data);
  if (address % static_cast<uintptr_t>(dtype_size(view.dtype)) != 0) {
    fail(std::string(argument.name) + ".data is at an address that is no multiple of " +
         std::to_string(dtype_size(view.dtype)) + ", expected aligned " + dtype_name(view.dtype) + " elements");
  }
}

}  // namespace dlattn::py
