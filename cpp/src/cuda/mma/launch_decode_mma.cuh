// The launch of attention_decode_mma.
#pragma once

#include "cuda/any/combine_splits.h"
#include "cuda/kernel_table.h"
#include "cuda/launch.cuh"
#include "cuda/launch_plan.h"
#include "cuda/mma/attention_decode_mma.cuh"

namespace dlattn::cuda {

template <DType kDType, int kHeadDim>
void launch_decode_mma(const AttentionProblem& problem, const KernelRow& row, const LaunchContext& context) {
  static_assert(kDType == DType::kFloat16 || kDType == DType::kBFloat16);
  using T = typename ElementOf<kDType>::Type;
  using Config = DecodeMmaConfig<kHeadDim>;
  constexpr auto* kKernel = decode_mma::attention_decode_mma<T, Config>;
  const RowTiles tiles = row_tiles(row, problem);
  const SplitPlan plan = split_plan(row, problem, tiles, context.caps);
  const int64_t items = tiles.num_slots * problem.num_kv_heads, total = items * plan.max_splits;
  const Partials partials(context.workspace, items, plan, Config::kRows, problem.head_dim_v);
  allow_shared<kKernel>(context.device, Config::kSharedBytes);
  launch(kKernel, "launch of attention_decode_mma", grid_of(total), Config::kThreads, Config::kSharedBytes,
         context.stream, problem, tiles, plan, partials, FastDiv(tiles.num_slots), total);
  if (plan.max_splits <= 1) return;
  if (is_chainable<kKernel>(context.device)) {
    chain_combine_splits(problem, tiles, plan, partials, context.device, context.stream);
  } else {
    launch_combine_splits(problem, tiles, plan, partials, context.stream);
  }
}

}  // namespace dlattn::cuda
