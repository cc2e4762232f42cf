// Merge the partial results of split keys (attn/partial.h).
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/attn/partial.h"
#include "cuda/attn/row_tile.h"
#include "cuda/problem.h"

namespace dlattn::cuda {

// After the kernel that wrote the parts, which was launched just before.
void launch_combine_splits(const AttentionProblem& problem, const RowTiles& tiles, const SplitPlan& plan,
                           const Partials& partials, cudaStream_t stream);

// The same, begun while that kernel still runs; for kernels that are chainable on the device (launch.cuh).
void chain_combine_splits(const AttentionProblem& problem, const RowTiles& tiles, const SplitPlan& plan,
                          const Partials& partials, int device, cudaStream_t stream);

}  // namespace dlattn::cuda
