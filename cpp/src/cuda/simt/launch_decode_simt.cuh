// The launch of attention_decode_simt; instances are in attention_decode_simt_{f32,f16,bf16}.cu.
#pragma once

#include "cuda/any/combine_splits.h"
#include "cuda/launch.cuh"
#include "cuda/launch_plan.h"
#include "cuda/simt/attention_decode_simt.cuh"
#include "cuda/simt/launch_simt.h"

namespace dlattn::cuda {

template <DType kDType, int kHeadDim, int kRows>
void launch_decode_simt(const AttentionProblem& problem, const KernelRow& row, const LaunchContext& context) {
  using T = typename ElementOf<kDType>::Type;
  using Config = DecodeSimtConfig<kDType, kHeadDim, kRows>;
  const RowTiles tiles = row_tiles(row, problem);
  const SplitPlan plan = split_plan(row, problem, tiles, context.caps);
  const int64_t items = tiles.num_slots * problem.num_kv_heads;
  const Partials partials(context.workspace, items, plan, kRows, problem.head_dim_v);
  launch(decode_simt::attention_decode_simt<T, Config>, "launch of attention_decode_simt",
         grid_of(items * plan.max_splits), Config::kThreads, 0, context.stream, problem, tiles, plan, partials, items);
  if (plan.max_splits > 1) launch_combine_splits(problem, tiles, plan, partials, context.stream);
}

}  // namespace dlattn::cuda
