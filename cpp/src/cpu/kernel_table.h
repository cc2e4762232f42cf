// One instruction set's row of functions; included last by each kernels_*.cpp, after its simd_*.h.
#pragma once

#include "cpu/attend_few.h"
#include "cpu/attend_tile.h"
#include "cpu/rotate.h"

namespace dlattn::cpu {
namespace {

template <class T>
constexpr DTypeKernels dtype_kernels() {
  return {{start_rows<T>, attend_tile<T>, attend_few<T>}, rotate_rows<T>, load_any<T>, store_any<T>};
}

constexpr Kernels make_kernels(const char* isa) {
  return {isa, {dtype_kernels<float>(), dtype_kernels<Float16>(), dtype_kernels<BFloat16>()}};
}

}  // namespace
}  // namespace dlattn::cpu
