// __cuda_array_interface__ (numba, version 2 and 3) and __array_interface__ (NumPy before 2.1, for read-only arrays).
// https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html
#include <cstdint>

#include "array.h"

namespace dlattn::py {

namespace {

bool from_typestr(const std::string& typestr, DType* result) {
  if (typestr == "<f4" || typestr == "=f4") return *result = DType::kFloat32, true;
  if (typestr == "<f2" || typestr == "=f2") return *result = DType::kFloat16, true;
  if (typestr == "|b1") return *result = DType::kBool, true;
  if (typestr == "<i4" || typestr == "=i4") return *result = DType::kInt32, true;
  if (typestr == "<i8" || typestr == "=i8") return *result = DType::kInt64, true;
  if (typestr == "<u2" || typestr == "=u2")
    return *result = DType::kFloat16, true;  // bits; the caller knows what they are
  return false;
}

}  // namespace

TensorView Call::from_array_interface(const char* name, const nb::object& interface, bool cuda) {
  TensorView view;
  const std::string typestr = nb::cast<std::string>(nb::str(interface["typestr"]));
  if (!from_typestr(typestr, &view.dtype) || (cuda && typestr == "<u2")) {
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
  view.data = reinterpret_cast<void*>(nb::cast<uintptr_t>(data[0]));
  view.read_only = nb::cast<bool>(data[1]);
  view.device = {cuda ? DeviceType::kCUDA : DeviceType::kCPU, 0};
  const int64_t size = dtype_size(view.dtype);
  int64_t packed = 1;
  for (int i = view.ndim - 1; i >= 0; --i) {
    view.shape[i] = nb::cast<int64_t>(shape[i]);
    view.strides[i] = packed;
    if (!strides.is_none()) {
      const int64_t bytes = nb::cast<int64_t>(strides[i]);
      if (bytes % size != 0 && view.shape[i] > 1) {
        fail(std::string(name) + ".strides[" + std::to_string(i) + "] is " + std::to_string(bytes) +
             " bytes, expected a multiple of " + std::to_string(size) + " (= the item size)");
      }
      view.strides[i] = bytes / size;
    }
    packed *= view.shape[i];
  }
  if (cuda) {
    // Version 3 names the stream that the data is ready on; none: no wait is needed.
    const nb::object stream = interface.attr("get")("stream");
    const uintptr_t producer_stream = stream.is_none() ? 1 : nb::cast<uintptr_t>(stream);
    if (!stream_known_) {
      stream_known_ = true;
      stream_ = producer_stream;
    } else if (!stream.is_none() && producer_stream != (stream_ == 0 ? 1 : stream_)) {
      fail(std::string(name) + " is ready on CUDA stream " + std::to_string(producer_stream) + ", expected " +
           std::to_string(stream_) + " (= this call's stream; __cuda_array_interface__ cannot order the two)");
    }
  }
  return view;
}

}  // namespace dlattn::py
