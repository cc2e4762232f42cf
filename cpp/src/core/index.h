// Reading int32 and int64 arrays of lengths, ids and positions.
#pragma once

#include <cstdint>

#include "dlattn/params.h"

namespace dlattn::core {

inline int64_t index_at(const IndexArray& array, int64_t i) {
  return array.dtype == DType::kInt32 ? static_cast<const int32_t*>(array.data)[i]
                                      : static_cast<const int64_t*>(array.data)[i];
}

}  // namespace dlattn::core
