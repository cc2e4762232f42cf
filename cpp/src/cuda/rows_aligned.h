// Which tensors can be read and written in pieces of several elements.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>

namespace dlattn::cuda {

constexpr int64_t kPieceBytes = 16;  // of the widest access

struct Axis {
  int64_t size, stride;
};

// Every row starts at a multiple of `bytes`. `unit`: bytes that a stride counts in. Axes of size 1 do not count.
inline bool rows_aligned(const void* data, int64_t bytes, int64_t unit, std::initializer_list<Axis> axes) {
  return reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(bytes) == 0 &&
         std::all_of(axes.begin(), axes.end(),
                     [&](const Axis& axis) { return axis.size <= 1 || axis.stride % (bytes / unit) == 0; });
}

}  // namespace dlattn::cuda
