// The older array protocols: __cuda_array_interface__ (numba; version 2 and 3) and NumPy's __array_struct__.
// https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html
// https://numpy.org/doc/stable/reference/arrays.interface.html#c-struct-access
#include <algorithm>
#include <cstdint>

#include "array.h"
#include "backend.h"
#include "dlattn/runtime.h"

namespace dlattn::py {

namespace {

// What the capsule in __array_struct__ points to.
struct ArrayStruct {
  int version;  // 2
  int ndim;
  char kind;  // 'f', 'i', 'b', ...; 'V' for ml_dtypes
  int item_size;
  int flags;
  intptr_t* shape;
  intptr_t* strides;  // bytes
  void* data;
  PyObject* descr;
};
constexpr int kNativeByteOrder = 0x200, kWriteable = 0x400;

bool from_kind(char kind, int item_size, DType* result) {
  if (kind == 'f' && item_size == 4) return *result = DType::kFloat32, true;
  if (kind == 'f' && item_size == 2) return *result = DType::kFloat16, true;
  if (kind == 'b' && item_size == 1) return *result = DType::kBool, true;
  if (kind == 'i' && item_size == 4) return *result = DType::kInt32, true;
  if (kind == 'i' && item_size == 8) return *result = DType::kInt64, true;
  return false;
}

// typestr: byte order, kind, item size; "<f4".
bool from_typestr(const std::string& typestr, DType* result) {
  return typestr.size() == 3 && typestr[0] != '>' && from_kind(typestr[1], typestr[2] - '0', result);
}

std::string odd_stride(const char* name, int axis, int64_t bytes, int64_t item_size) {
  return std::string(name) + ".strides[" + std::to_string(axis) + "] is " + std::to_string(bytes) +
         " bytes, expected a multiple of " + std::to_string(item_size) + " (= the item size)";
}

}  // namespace

TensorView Call::from_cuda_array_interface(const Argument& argument) {
  const char* name = argument.name;
  const nb::object interface = get(argument.object, names().cuda_array_interface);
  TensorView view;
  const std::string typestr = nb::cast<std::string>(nb::str(interface["typestr"]));
  if (!from_typestr(typestr, &view.dtype)) {
    fail(std::string(name) + ".dtype is '" + typestr + "', expected float32, float16, bool, int32 or int64");
  }
  const nb::tuple shape = nb::cast<nb::tuple>(interface["shape"]);
  const nb::object strides = interface.attr("get")("strides");
  const nb::tuple data = nb::cast<nb::tuple>(interface["data"]);
  if (nb::len(shape) > static_cast<size_t>(kMaxDims)) {
    fail(std::string(name) + ".ndim is " + std::to_string(nb::len(shape)) + ", expected at most " +
         std::to_string(kMaxDims));
  }
  view.ndim = static_cast<int32_t>(nb::len(shape));
  view.data = data[0].is_none() ? nullptr : reinterpret_cast<void*>(nb::cast<uintptr_t>(data[0]));
  view.read_only = is_true(data[1]);
  // An empty array may be nowhere: then it is where the others are.
  int device = std::max(device_, 0);
  if (view.data != nullptr && cuda_compiled()) {
    try {
      device = cuda_device_of(view.data);
    } catch (const InvalidArgument&) {
      fail(std::string(name) + ".data is not memory of a CUDA device, expected device or managed memory (= what " +
           "__cuda_array_interface__ is for)");
    }
  }
  view.device = {DeviceType::kCUDA, device};
  device_ = device;
  const int64_t size = dtype_size(view.dtype);
  int64_t packed = 1;
  for (int i = view.ndim - 1; i >= 0; --i) {
    view.shape[i] = nb::cast<int64_t>(shape[i]);
    view.strides[i] = packed;
    if (!strides.is_none()) {
      const int64_t bytes = nb::cast<int64_t>(strides[i]);
      if (bytes % size != 0 && view.shape[i] > 1) {
        fail(odd_stride(name, i, bytes, size));
      }
      view.strides[i] = bytes / size;
    }
    packed *= view.shape[i];
  }
  // Version 3 names the stream that the data is ready on; none: no wait is needed.
  const nb::object stream = interface.attr("get")("stream");
  if (!stream.is_none()) {
    use_stream(argument, nb::cast<uintptr_t>(stream), device);
  } else if (!stream_known_) {
    stream_known_ = true;
    stream_ = current_stream(*argument.producer, argument.object, device);
  }
  return view;
}

// A NumPy array whose dtype or read-only flag DLPack cannot express.
TensorView Call::from_array_struct(const Argument& argument, bool is_bfloat16) {
  nb::object capsule = get(argument.object, names().array_struct);
  const auto* array = static_cast<const ArrayStruct*>(PyCapsule_GetPointer(capsule.ptr(), nullptr));
  if (array == nullptr) nb::raise_python_error();
  TensorView view;
  view.dtype = DType::kBFloat16;
  const bool known = is_bfloat16 ? array->item_size == 2 : from_kind(array->kind, array->item_size, &view.dtype);
  if (!known || (array->flags & kNativeByteOrder) == 0) {
    fail(std::string(argument.name) + ".dtype is no native float32, float16, bfloat16, bool, int32 or int64");
  }
  if (array->ndim > kMaxDims) {
    fail(std::string(argument.name) + ".ndim is " + std::to_string(array->ndim) + ", expected at most " +
         std::to_string(kMaxDims));
  }
  view.ndim = array->ndim;
  view.data = array->data;
  view.read_only = (array->flags & kWriteable) == 0;
  for (int i = 0; i < array->ndim; ++i) {
    view.shape[i] = array->shape[i];
    if (array->strides[i] % array->item_size != 0 && array->shape[i] > 1) {
      fail(odd_stride(argument.name, i, array->strides[i], array->item_size));
    }
    view.strides[i] = array->strides[i] / array->item_size;
  }
  keep(std::move(capsule));
  return view;
}

}  // namespace dlattn::py
