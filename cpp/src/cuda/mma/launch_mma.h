// Launches of the mma kernels, one function for each instance (cmake/KernelInstances.cmake).
#pragma once

#include "cuda/kernel_table.h"

namespace dlattn::cuda {

// kOptions: with softcap, mask and ALiBi, and any scale.
template <DType kDType, int kHeadDim, bool kOptions>
void launch_prefill_mma(const AttentionProblem& problem, const KernelRow& row, const LaunchContext& context);

template <DType kDType, int kHeadDim>
void launch_decode_mma(const AttentionProblem& problem, const KernelRow& row, const LaunchContext& context);

}  // namespace dlattn::cuda
