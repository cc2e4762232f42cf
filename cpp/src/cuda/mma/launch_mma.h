// Launches of the mma kernels, one function for each instance (cmake/KernelInstances.cmake).
#pragma once

#include "cuda/kernel_table.h"
#include "cuda/mma/config_prefill_mma.h"

namespace dlattn::cuda {

template <DType kDType, int kHeadDim, PrefillKind kKind>
void launch_prefill_mma(const AttentionProblem& problem, const KernelRow& row, const LaunchContext& context);

template <DType kDType, int kHeadDim>
void launch_decode_mma(const AttentionProblem& problem, const KernelRow& row, const LaunchContext& context);

}  // namespace dlattn::cuda
