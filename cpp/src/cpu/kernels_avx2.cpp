#include "cpu/simd_avx2.h"
// the instruction set comes first
#include "cpu/kernel_table.h"

namespace dlattn::cpu {

const Kernels kKernelsAvx2 = make_kernels("avx2");

}  // namespace dlattn::cpu
