// Which instruction set the CPU backend uses.
#pragma once

#include <string>
#include <vector>

#include "cpu/kernels.h"

namespace dlattn::cpu {

// Built levels that this processor has, the best last.
std::vector<const Kernels*> available_kernels();

// The level in use: the best, or the one DLATTN_CPU_ISA names (read once). Throws InvalidArgument if that one is not there.
const Kernels& kernels();

inline const DTypeKernels& kernels_for(DType dtype) { return kernels().by_dtype[static_cast<int>(dtype)]; }

}  // namespace dlattn::cpu
