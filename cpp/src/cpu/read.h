// Single elements of index and constant arrays.
#pragma once

#include <cstdint>

#include "cpu/dtypes.h"
#include "dlattn/params.h"

namespace dlattn::cpu {

inline int64_t read_index(const IndexArray& array, int64_t i) {
  return array.dtype == DType::kInt64 ? static_cast<const int64_t*>(array.data)[i]
                                      : static_cast<const int32_t*>(array.data)[i];
}

inline float read_float(const FloatArray& array, int64_t i) {
  switch (array.dtype) {
    case DType::kFloat16:
      return to_float(static_cast<const Float16*>(array.data)[i]);
    case DType::kBFloat16:
      return to_float(static_cast<const BFloat16*>(array.data)[i]);
    default:
      return static_cast<const float*>(array.data)[i];
  }
}

}  // namespace dlattn::cpu
