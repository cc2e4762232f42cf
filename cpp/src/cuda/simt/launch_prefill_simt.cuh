// The launch of attention_prefill_simt; instances are in attention_prefill_simt_{f32,16bit}.cu.
#pragma once

#include "cuda/launch.cuh"
#include "cuda/launch_plan.h"
#include "cuda/simt/attention_prefill_simt.cuh"
#include "cuda/simt/launch_simt.h"

namespace dlattn::cuda {

template <class Config>
void launch_prefill_simt(const AttentionProblem& problem, const KernelRow& row, const LaunchContext& context) {
  const RowTiles tiles = row_tiles(row, problem);
  const int64_t items = tiles.num_slots * problem.num_kv_heads;
  constexpr auto* kKernel = prefill_simt::attention_prefill_simt<Config>;
  allow_shared<kKernel>(context.device, Config::kSharedBytes);
  launch(kKernel, "launch of attention_prefill_simt", grid_of(items), Config::kThreads, Config::kSharedBytes,
         context.stream, problem, tiles, WorkOrder(problem, tiles), items);
}

}  // namespace dlattn::cuda
