// GCC 12 warns inside its own AVX-512 header (GCC bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#include "cpu/simd_avx512.h"
// the instruction set comes first
#include "cpu/kernel_table.h"

namespace dlattn::cpu {

const Kernels kKernelsAvx512 = make_kernels("avx512");

}  // namespace dlattn::cpu
