// Tensor maps: what TMA is told of a tensor in global memory.
#pragma once

#include <cuda.h>

#include "cuda/wgmma/tensor_axes.h"

namespace dlattn::cuda {

// Of a float16 or bfloat16 tensor, axes innermost first (head_dim, seq, head, batch), by boxes of 64 columns and `box_rows`
// (1 to 256) rows of one head: a panel of 128-byte rows in shared memory, in the 128-byte swizzle. What is outside reads as
// zero and is not written. Throws CudaError if the tensor does not fit, `base` is null or the driver lacks tensor maps.
CUtensorMap tensor_map(DType dtype, const void* base, int64_t head_dim, TensorMapAxis seq, TensorMapAxis head,
                       TensorMapAxis batch, int box_rows);

inline CUtensorMap tensor_map(DType dtype, const void* base, int64_t head_dim, const TensorMapAxes& axes,
                              int box_rows) {
  return tensor_map(dtype, base, head_dim, axes.seq, axes.head, axes.batch, box_rows);
}

}  // namespace dlattn::cuda
