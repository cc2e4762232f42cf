// Elements of typed arrays: names, sizes, addresses, single values. On the CPU for code that is compiled once, for the
// baseline.
#pragma once

#include <cstdint>

#include "dlattn/params.h"
#include "host_device.h"

namespace dlattn {

inline const char* name_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "float32";
    case DType::kFloat16:
      return "float16";
    case DType::kBFloat16:
      return "bfloat16";
    case DType::kBool:
      return "bool";
    case DType::kInt32:
      return "int32";
    case DType::kInt64:
      return "int64";
  }
  return "an unknown dtype";
}

// In the name of a kernel.
inline const char* suffix_of(DType dtype) {
  return dtype == DType::kFloat16 ? "_f16" : dtype == DType::kBFloat16 ? "_bf16" : "_f32";
}

inline int64_t size_of(DType dtype) {  // bytes
  switch (dtype) {
    case DType::kBool:
      return 1;
    case DType::kFloat16:
    case DType::kBFloat16:
      return 2;
    case DType::kInt64:
      return 8;
    default:
      return 4;
  }
}

// `elements` from `base` on; null stays null.
inline const char* offset(const void* base, int64_t elements, DType dtype) {
  return base == nullptr ? nullptr : static_cast<const char*>(base) + elements * size_of(dtype);
}

inline char* offset(void* base, int64_t elements, DType dtype) {
  return base == nullptr ? nullptr : static_cast<char*>(base) + elements * size_of(dtype);
}

DLATTN_HOST_DEVICE int64_t index_at(const IndexArray& array, int64_t i) {
  return array.dtype == DType::kInt32 ? static_cast<const int32_t*>(array.data)[i]
                                      : static_cast<const int64_t*>(array.data)[i];
}

}  // namespace dlattn
