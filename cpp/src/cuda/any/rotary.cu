// Instances of rotary_any, and its launch.
#include <algorithm>

#include "cuda/any/rotary.cuh"
#include "cuda/any/rotary.h"
#include "cuda/launch.cuh"

namespace dlattn::cuda {
namespace {

using Kernel = void (*)(RotaryArgs);

template <typename Piece>
Kernel instance(bool caches) {
  return caches ? rotary_any<Piece, true> : rotary_any<Piece, false>;
}

template <typename T>
Kernel instance(const RotaryPlan& plan) {
  if (plan.why_scalar != nullptr) return instance<rotary_pieces::ScalarPiece<T>>(plan.caches);
  return plan.args.split ? instance<rotary_pieces::VectorPiece<T, true>>(plan.caches)
                         : instance<rotary_pieces::VectorPiece<T, false>>(plan.caches);
}

Kernel instance_for(const RotaryPlan& plan) {
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
  const Kernel kernel = instance_for(plan);
  const int64_t max_chunks = INT32_MAX / args.blocks_per_chunk;  // of a grid
  while (args.first_chunk < args.num_chunks) {
    const int64_t chunks = std::min(args.num_chunks - args.first_chunk, max_chunks);
    launch(kernel, "launch of rotary_any", grid_of(chunks * args.blocks_per_chunk), kRotaryThreads, 0, stream, args);
    args.first_chunk += chunks;
  }
}

}  // namespace dlattn::cuda
