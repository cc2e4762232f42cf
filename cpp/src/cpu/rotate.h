// Rotation of one token's heads, in float32, rounded once. Compiled once per instruction set.
#pragma once

#include <cstring>

#include "cpu/kernels.h"
#include "cpu/rows.h"

namespace dlattn::cpu {
namespace {

template <class T>
void rotate_rows(const RotaryRows& rows) {
  const int half = rows.rotary_dim / 2;
  float x[256], y[256];
  for (int64_t head = 0; head < rows.num_heads; ++head) {
    const T* src = static_cast<const T*>(rows.src) + head * rows.src_stride_head;
    T* dst = static_cast<T*>(rows.dst) + head * rows.dst_stride_head;
    load_row(src, x, rows.rotary_dim);
    if (rows.interleaved) {
      for (int i = 0; i < half; ++i) {
        const float a = x[2 * i], b = x[2 * i + 1];
        y[2 * i] = a * rows.cos[i] - b * rows.sin[i];
        y[2 * i + 1] = b * rows.cos[i] + a * rows.sin[i];
      }
    } else {
      for (int i = 0; i < half; ++i) {
        const float a = x[i], b = x[i + half];
        y[i] = a * rows.cos[i] - b * rows.sin[i];
        y[i + half] = b * rows.cos[i] + a * rows.sin[i];
      }
    }
    if (dst != src) {
      std::memmove(dst + rows.rotary_dim, src + rows.rotary_dim,
                   static_cast<size_t>(rows.head_dim - rows.rotary_dim) * sizeof(T));
    }
    store_row(y, dst, rows.rotary_dim);
  }
}

}  // namespace
}  // namespace dlattn::cpu
