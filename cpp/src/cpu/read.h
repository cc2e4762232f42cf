// Single elements of constant arrays.
#pragma once

#include <cstdint>

#include "cpu/dtypes.h"
#include "dlattn/params.h"

namespace dlattn::cpu {

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
