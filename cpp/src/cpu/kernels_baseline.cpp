#include "cpu/simd_baseline.h"
// the instruction set comes first
#include "cpu/kernel_table.h"

namespace dlattn::cpu {

const Kernels kKernelsBaseline = make_kernels("baseline");

}  // namespace dlattn::cpu
