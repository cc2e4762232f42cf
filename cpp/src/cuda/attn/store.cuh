// Four results of one row, converted to the output's dtype.
#pragma once

#include "cuda/attn/convert.cuh"
#include "cuda/problem.h"

namespace dlattn::cuda {

// `row`: elements from out; `column`: a multiple of 4. Columns from head_dim_v on are dropped.
__device__ __forceinline__ void store_columns(const AttentionProblem& p, int64_t row, int column, float4 x) {
  if (column >= p.head_dim_v) return;
  if (p.out_aligned && p.dtype == DType::kFloat32) {
    *reinterpret_cast<float4*>(static_cast<float*>(p.out) + row + column) = x;
  } else if (p.out_aligned) {
    const bool half = p.dtype == DType::kFloat16;
    const uint2 words = half ? make_uint2(pack<__half>(x.x, x.y), pack<__half>(x.z, x.w))
                             : make_uint2(pack<__nv_bfloat16>(x.x, x.y), pack<__nv_bfloat16>(x.z, x.w));
    *reinterpret_cast<uint2*>(static_cast<uint16_t*>(p.out) + row + column) = words;
  } else {
    const float values[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      if (column + c < p.head_dim_v) store_float(p.out, p.dtype, row + column + c, values[c]);
    }
  }
}

}  // namespace dlattn::cuda
