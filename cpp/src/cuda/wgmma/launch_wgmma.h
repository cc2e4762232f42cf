// Launches of the wgmma kernels, one function for each instance (cmake/KernelInstances.cmake).
#pragma once

#include "cuda/kernel_table.h"
#include "cuda/wgmma/config_prefill_wgmma.h"

namespace dlattn::cuda {

template <DType kDType, int kHeadDim, PrefillWgmmaKind kKind>
void launch_prefill_wgmma(const AttentionProblem& problem, const KernelRow& row, const LaunchContext& context);

}  // namespace dlattn::cuda
