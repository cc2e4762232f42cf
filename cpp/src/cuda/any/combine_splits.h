// Merge the partial results of split keys (attn/partial.h).
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/attn/partial.h"
#include "cuda/attn/row_tile.h"
#include "cuda/problem.h"

namespace dlattn::cuda {

void launch_combine_splits(const AttentionProblem& problem, const RowTiles& tiles, const SplitPlan& plan,
                           const Partials& partials, cudaStream_t stream);

}  // namespace dlattn::cuda
