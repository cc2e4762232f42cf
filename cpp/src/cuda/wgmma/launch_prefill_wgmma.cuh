// The launch of attention_prefill_wgmma.
#pragma once

#include <atomic>
#include <numeric>

#include "cuda/any/combine_splits.h"
#include "cuda/launch.cuh"
#include "cuda/launch_plan.h"
#include "cuda/wgmma/attention_prefill_wgmma.cuh"
#include "cuda/wgmma/launch_wgmma.h"
#include "cuda/wgmma/tensor_map.h"

namespace dlattn::cuda {

// As if each query head had a kv head of its own, which is how parts of the keys are merged here.
inline AttentionProblem by_query_heads(AttentionProblem p) {
  p.num_kv_heads = p.num_heads;
  p.heads_per_kv_head = 1;
  p.heads_per_kv_head_div = FastDiv(1);
  p.kv_heads_div = FastDiv(std::max<int64_t>(p.num_heads, 1));
  return p;
}

// Of every launch another one, and unlikely to lie in memory by chance.
inline uint64_t next_launch_key() {
  constexpr uint64_t kOdd = 0x9e3779b97f4a7c15;  // 2^64 / golden ratio: neighbours differ in all bits
  static std::atomic<uint64_t> next{kOdd};
  return next.fetch_add(kOdd, std::memory_order_relaxed);
}

template <DType kDType, class Config, bool kSoftcap, bool kTurns>
void launch_tiles_wgmma(const AttentionProblem& p, const KernelRow& row, const LaunchContext& context) {
  using T = typename ElementOf<kDType>::Type;
  static_assert(sizeof(prefill_wgmma::SharedStorage<T, Config>) <= Config::kSharedBytes);
  constexpr auto* kKernel = prefill_wgmma::attention_prefill_wgmma<T, Config, kSoftcap, kTurns>;
  constexpr int kRows = Config::kTileQ, kKeys = Config::kTileKV;
  const RowTiles tiles = row_tiles(row, p);
  const int num_sms = std::max(context.caps.num_sms, 1);
  const SplitPlan plan = split_plan(row, p, tiles, context.caps);
  const int num_blocks = num_sms * Config::kBlocks;
  const WorkOrderWgmma order(p, tiles, num_blocks);
  const Partials partials(context.workspace, tiles.num_slots * p.num_heads, plan, kRows, p.head_dim_v);
  auto* counter = order.counted ? static_cast<prefill_wgmma::ItemCounter*>(context.workspace) : nullptr;
  prefill_wgmma::WorkList list(p, tiles, plan, order.pairs, counter);
  list.key = next_launch_key();
  list.capped = p.softcap > 0.0f;
  list.cap_scale = list.capped ? 2.0f * kLog2E * p.scale / p.softcap : 0.0f;
  list.scale_log2 = (list.capped ? p.softcap : p.scale) * kLog2E;

  prefill_wgmma::KeyBoxes boxes;
  boxes.box_rows = kKeys;
  if (p.paged) {
    boxes.rows_of_page = static_cast<int>(p.page_size.divisor);
    boxes.page_size = NarrowDiv(boxes.rows_of_page);
    boxes.box_rows = std::gcd(boxes.rows_of_page, kKeys);
  }
  const prefill_wgmma::TensorMaps maps = {tensor_map(p.dtype, p.q, p.head_dim, q_axes(p), kRows),
                                          tensor_map(p.dtype, p.k, p.head_dim, k_axes(p), boxes.box_rows),
                                          tensor_map(p.dtype, p.v, p.head_dim_v, v_axes(p), boxes.box_rows),
                                          tensor_map(p.dtype, p.out, p.head_dim_v, out_axes(p), 16)};
  allow_shared<kKernel>(context.device, Config::kSharedBytes);
  launch_chained(kKernel, "launch of attention_prefill_wgmma", grid_of(std::min(list.num_items, num_blocks)),
                 Config::kThreads, Config::kSharedBytes, context.stream, p, list, partials, boxes, maps);
  if (plan.max_splits > 1) {
    chain_combine_splits(by_query_heads(p), tiles, plan, partials, context.device, context.stream);
  }
}

// The groups take turns where sequences are short.
template <DType kDType, class Config, bool kSoftcap>
void launch_config_wgmma(const AttentionProblem& p, const KernelRow& row, const LaunchContext& context) {
  if constexpr (Config::kTurnKeys == 0) {
    launch_tiles_wgmma<kDType, Config, kSoftcap, false>(p, row, context);
  } else if constexpr (Config::kTurnKeys == kAnyKeys) {
    launch_tiles_wgmma<kDType, Config, kSoftcap, true>(p, row, context);
  } else {
    (typical_keys(p) <= Config::kTurnKeys ? launch_tiles_wgmma<kDType, Config, kSoftcap, true>
                                          : launch_tiles_wgmma<kDType, Config, kSoftcap, false>)(p, row, context);
  }
}

template <DType kDType, int kHeadDim, PrefillWgmmaKind kKind>
void launch_prefill_wgmma(const AttentionProblem& problem, const KernelRow& row, const LaunchContext& context) {
  using Config = PrefillWgmmaConfig<kHeadDim, kKind>;
  launch_config_wgmma<kDType, Config, kKind == PrefillWgmmaKind::kSoftcap>(problem, row, context);
}

}  // namespace dlattn::cuda
