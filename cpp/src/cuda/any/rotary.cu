// Instances of rotary_any, and its launch.
#include <algorithm>

#include "cuda/any/rotary.cuh"
#include "cuda/any/rotary.h"
#include "cuda/check.h"

namespace dlattn::cuda {
namespace {

template <typename Piece>
const void* instance(bool caches) {
  return caches ? reinterpret_cast<const void*>(&rotary_any<Piece, true>)
                : reinterpret_cast<const void*>(&rotary_any<Piece, false>);
}

template <typename T>
const void* instance(const RotaryPlan& plan) {
  if (plan.why_scalar != nullptr) return instance<rotary_pieces::ScalarPiece<T>>(plan.caches);
  return plan.args.split ? instance<rotary_pieces::VectorPiece<T, true>>(plan.caches)
                         : instance<rotary_pieces::VectorPiece<T, false>>(plan.caches);
}

const void* instance_for(const RotaryPlan& plan) {
  switch (plan.dtype) {
    case DType::kFloat16:
      return instance<__half>(plan);
    case DType::kBFloat16:
      return instance<__nv_bfloat16>(plan);
    default:
      return instance<float>(plan);
  }
}

}  // namespace

void launch_rotary(const RotaryPlan& plan, cudaStream_t stream) {
  RotaryArgs args = plan.args;
  if (args.blocks_per_chunk == 0) return;
  const void* kernel = instance_for(plan);
  const int64_t max_chunks = INT32_MAX / args.blocks_per_chunk;  // of a grid
  while (args.first_chunk < args.num_chunks) {
    const int64_t chunks = std::min(args.num_chunks - args.first_chunk, max_chunks);
    const dim3 grid(static_cast<unsigned>(chunks * args.blocks_per_chunk));
    void* arguments[] = {&args};
    check(cudaLaunchKernel(kernel, grid, dim3(kRotaryThreads), arguments, 0, stream), "launch of rotary_any");
    args.first_chunk += chunks;
  }
}

}  // namespace dlattn::cuda
