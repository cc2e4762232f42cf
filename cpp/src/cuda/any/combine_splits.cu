// combine_splits -- merge the partial results of split keys into out and lse.
//   computes  m = max m_i;  out = sum_i e^(m_i - m) acc_i / sum_i e^(m_i - m) sum_i, the sink among the sums
//   work      one warp a row; a lane holds 8 columns, the parts are read in order
//   assumes   nothing; rows that were not split are final already and are left alone
//   elsewhere who writes the parts: simt/attention_decode_simt.cuh
//   checked   tests_cpp/ops/test_attention_cuda.cpp (many keys)
#include "cuda/any/combine_splits.h"
#include "cuda/attn/softmax.cuh"
#include "cuda/attn/store.cuh"
#include "cuda/launch.cuh"

namespace dlattn::cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32;

// e^(x - largest); 1 if nothing is visible anywhere, so that a NaN sum stays one.
__device__ __forceinline__ float weight_of(float row_max, float largest) {
  return row_max == largest ? 1.0f : exp_of(row_max - largest);
}

__device__ __forceinline__ void add(float4& acc, float weight, const float* part) {
  const float4 x = *reinterpret_cast<const float4*>(part);
  acc.x = fmaf(weight, x.x, acc.x);
  acc.y = fmaf(weight, x.y, acc.y);
  acc.z = fmaf(weight, x.z, acc.z);
  acc.w = fmaf(weight, x.w, acc.w);
}

__global__ __launch_bounds__(kThreads) void combine_splits(const __grid_constant__ AttentionProblem p,
                                                           const __grid_constant__ RowTiles tiles,
                                                           const __grid_constant__ SplitPlan plan,
                                                           const __grid_constant__ Partials partials,
                                                           int64_t num_rows) {
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kWarps;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32; row < num_rows; row += step) {
    const int64_t item = row / partials.tile_rows;
    const int r = static_cast<int>(row - item * partials.tile_rows);
    const int64_t slot = p.kv_heads_div.div(item);
    const int64_t kv_head = item - slot * p.num_kv_heads;
    const RowTile tile = tiles.find(slot);
    if (tile.first_row < 0) continue;
    const Sequence sequence(p, tile.batch);
    const int64_t tile_end = min(tile.first_row + partials.tile_rows, sequence.len_q * p.heads_per_kv_head);
    if (tile.first_row + r >= tile_end) continue;
    const KeyRange keys = sequence.visible_keys(p, p.heads_per_kv_head_div.div(tile.first_row),
                                                p.heads_per_kv_head_div.div(tile_end - 1));
    const int num_splits = static_cast<int>(plan.num_splits(keys.end - keys.begin));
    if (num_splits <= 1) continue;

    float largest = -INFINITY;
    for (int split = lane; split < num_splits; split += 32) {
      largest = fmaxf(largest, partials.row_max[partials.index(item, split, r)]);
    }
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, lanes));

    float sum = 0.0f;
    float4 acc[2] = {make_float4(0.0f, 0.0f, 0.0f, 0.0f), make_float4(0.0f, 0.0f, 0.0f, 0.0f)};
#pragma unroll 2
    for (int split = 0; split < num_splits; ++split) {
      const int64_t index = partials.index(item, split, r);
      const float weight = weight_of(partials.row_max[index], largest);
      sum = fmaf(weight, partials.row_sum[index], sum);
      const float* part = partials.acc + index * partials.row_floats + 4 * lane;
      if (4 * lane < partials.row_floats) add(acc[0], weight, part);
      if (4 * lane + 128 < partials.row_floats) add(acc[1], weight, part + 128);
    }

    const int64_t query = p.heads_per_kv_head_div.div(tile.first_row + r);
    const int64_t head = kv_head * p.heads_per_kv_head + (tile.first_row + r - query * p.heads_per_kv_head);
    const RowResult result(p.sinks, head, largest, sum);
    if (p.lse != nullptr && lane == 0) p.lse[sequence.lse_base + head * p.lse_stride_head + query] = result.lse;
    const int64_t at = sequence.out_base + query * p.out_stride_seq + head * p.out_stride_head;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float4 x = acc[n];
      store_columns(p, at, 128 * n + 4 * lane,
                    make_float4(result.value(x.x), result.value(x.y), result.value(x.z), result.value(x.w)));
    }
  }
}

}  // namespace

void launch_combine_splits(const AttentionProblem& problem, const RowTiles& tiles, const SplitPlan& plan,
                           const Partials& partials, cudaStream_t stream) {
  const int64_t rows = tiles.num_slots * problem.num_kv_heads * partials.tile_rows;
  launch(combine_splits, "launch of combine_splits", grid_of((rows + kWarps - 1) / kWarps), kThreads, 0, stream,
         problem, tiles, plan, partials, rows);
}

}  // namespace dlattn::cuda
