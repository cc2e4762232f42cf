// Rotary embedding and writes into a paged cache on any GPU: one kernel, three entries.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/any/rotary_args.h"

namespace dlattn::cuda {

// On the current device; nothing is launched if there is nothing to do. Throws CudaError.
void launch_rotary(const RotaryPlan& plan, cudaStream_t stream);

}  // namespace dlattn::cuda
