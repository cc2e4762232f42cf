// Entries of index arrays that nobody has checked: they are on the device, where a launch reads nothing back.
#pragma once

#include <cstdint>

#include "element.h"

namespace dlattn::cuda {

// Brought into low..high, so that a wrong one leads to a wrong result but never to a wild access.
DLATTN_HOST_DEVICE int64_t bounded_index(const IndexArray& array, int64_t i, int64_t low, int64_t high) {
  const int64_t value = index_at(array, i);
  return value < low ? low : value > high ? high : value;
}

}  // namespace dlattn::cuda
