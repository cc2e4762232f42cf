// Approximate functions of the special function unit.
#pragma once

namespace dlattn::cuda::ptx {

// 2^x; relative error 2^-22, results below 2^-126 are 0.
// PTX ISA, "Floating Point Instructions: ex2"; any SM.
__device__ __forceinline__ float ex2_approx_ftz(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace dlattn::cuda::ptx
