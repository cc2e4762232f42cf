// Launches of the simt kernels, one function for each instance.
#pragma once

#include "cuda/kernel_table.h"
#include "cuda/simt/config_simt.h"

namespace dlattn::cuda {

template <class Config>
void launch_prefill_simt(const AttentionProblem& problem, const KernelRow& row, const LaunchContext& context);

template <DType kDType, int kHeadDim, int kRows>
void launch_decode_simt(const AttentionProblem& problem, const KernelRow& row, const LaunchContext& context);

}  // namespace dlattn::cuda
