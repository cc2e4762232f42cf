// The launch of attention_prefill_mma.
#pragma once

#include "cuda/any/combine_splits.h"
#include "cuda/launch.cuh"
#include "cuda/launch_plan.h"
#include "cuda/mma/attention_prefill_mma.cuh"
#include "cuda/mma/launch_mma.h"

namespace dlattn::cuda {

template <DType kDType, int kHeadDim, PrefillKind kKind>
void launch_prefill_mma(const AttentionProblem& problem, const KernelRow& row, const LaunchContext& context) {
  using T = typename ElementOf<kDType>::Type;
  using Config = PrefillMmaConfig<kHeadDim, kKind>;
  static_assert(sizeof(prefill_mma::SharedStorage<T, Config>) <= Config::kSharedBytes);
  constexpr auto* kKernel = prefill_mma::attention_prefill_mma<T, Config, kKind == PrefillKind::kOptions>;
  const RowTiles tiles = row_tiles(row, problem);
  const SplitPlan plan = split_plan(row, problem, tiles, context.caps);
  const int64_t items = tiles.num_slots * problem.num_kv_heads;
  const Partials partials(context.workspace, items, plan, Config::kTileQ, problem.head_dim_v);
  allow_shared<kKernel>(context.device, Config::kSharedBytes);
  launch(kKernel, "launch of attention_prefill_mma", grid_of(items * plan.max_splits), Config::kThreads,
         Config::kSharedBytes, context.stream, problem, tiles, WorkOrder(problem, tiles), plan, partials, items);
  if (plan.max_splits > 1) launch_combine_splits(problem, tiles, plan, partials, context.stream);
}

}  // namespace dlattn::cuda
