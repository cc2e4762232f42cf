// combine_splits -- merge the partial results of split keys into out and lse.
//   computes  m = max m_i;  out = sum_i e^(m_i - m) acc_i / sum_i e^(m_i - m) sum_i, the sink among the sums
//   work      one unit: 128 columns of a row, by the 4 warps of a thread block, or by one where there are many units:
//             warp w takes the parts w, w + 4, ..; a lane holds 4 columns
//   latency   what a warp needs of its first kBatch parts is loaded at once, before the weights are known
//   smem      the sums of the warps, on their way to the first
//   sync      what the kernel before wrote is read after grid_dependency_wait, what was there before it ahead of that
//   assumes   nothing; rows that were not split are final already and are left alone
//   elsewhere who writes the parts: the attention kernels of simt/, mma/ and wgmma/
//   checked   tests_cpp/ops/test_attention_cuda.cpp (many keys)
#include "cuda/any/combine_splits.h"
#include "cuda/attn/softmax.cuh"
#include "cuda/attn/store.cuh"
#include "cuda/launch.cuh"
#include "cuda/ptx/grid_dependency.cuh"

namespace dlattn::cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32;
constexpr int kColumns = 128;  // of a unit
constexpr int kMinBlocks = 4;  // bounds the registers: one fits beside two thread blocks of attention_decode_mma
constexpr int kBatch = 8;      // parts whose loads are on their way together

// How rows become units. Tiles may have more rows than any call of them fills.
struct Units {
  FastDiv rows_per_item;
  int32_t blocks_of_columns = 1;  // 1 or 2
  int32_t warps = kWarps;         // that share a unit: kWarps or 1
  int64_t total = 0;
};

// e^(x - largest); 1 if nothing is visible anywhere, so that a NaN sum stays one.
__device__ __forceinline__ float weight_of(float row_max, float largest) {
  return row_max == largest ? 1.0f : exp_of(row_max - largest);
}

__device__ __forceinline__ void add(float4& acc, float weight, const float4& x) {
  acc.x = fmaf(weight, x.x, acc.x);
  acc.y = fmaf(weight, x.y, acc.y);
  acc.z = fmaf(weight, x.z, acc.z);
  acc.w = fmaf(weight, x.w, acc.w);
}

// Parts first, first + step, .. of a row whose part 0 is at `index`; what lies past the last one counts nothing.
struct Batch {
  float4 acc[kBatch];
  float row_max[kBatch], row_sum[kBatch];

  __device__ __forceinline__ Batch(const Partials& partials, int64_t index, int column, int first, int step,
                                   int num_splits) {
    const bool in_row = column < partials.row_floats;
    int64_t at = index + static_cast<int64_t>(first) * partials.tile_rows;
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      acc[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      row_max[i] = -INFINITY;
      row_sum[i] = 0.0f;
      if (first + i * step < num_splits) {
        row_max[i] = partials.row_max[at];
        row_sum[i] = partials.row_sum[at];
        if (in_row) acc[i] = *reinterpret_cast<const float4*>(partials.acc + at * partials.row_floats + column);
      }
      at += step * partials.tile_rows;
    }
  }
};

__global__ __launch_bounds__(kThreads, kMinBlocks) void combine_splits(const __grid_constant__ AttentionProblem p,
                                                                       const __grid_constant__ RowTiles tiles,
                                                                       const __grid_constant__ SplitPlan plan,
                                                                       const __grid_constant__ Partials partials,
                                                                       const __grid_constant__ Units units) {
  __shared__ float4 shared_acc[kWarps][32];
  __shared__ float shared_sum[kWarps];
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) / 32;
  const int per_block = kWarps / units.warps;  // units
  const int part = units.warps == 1 ? 0 : warp;
  bool waited = false;
  const auto wait = [&] {
    if (!waited) ptx::grid_dependency_wait();
    waited = true;
  };
  int64_t unit = static_cast<int64_t>(blockIdx.x) * per_block + (units.warps == 1 ? warp : 0);
  for (; unit < units.total; unit += static_cast<int64_t>(gridDim.x) * per_block) {
    const int64_t row = units.blocks_of_columns == 2 ? unit >> 1 : unit;
    const int column = units.blocks_of_columns == 2 ? kColumns * static_cast<int>(unit & 1) + 4 * lane : 4 * lane;
    const int64_t item = units.rows_per_item.div(row);
    const int r = static_cast<int>(row - item * units.rows_per_item.divisor);
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
    const int64_t query = p.heads_per_kv_head_div.div(tile.first_row + r);
    const int64_t head = kv_head * p.heads_per_kv_head + (tile.first_row + r - query * p.heads_per_kv_head);

    const int64_t out_at = sequence.out_base + query * p.out_stride_seq + head * p.out_stride_head;
    const int64_t lse_at = sequence.lse_base + query + head * p.lse_stride_head;

    wait();
    float largest = -INFINITY;
    const int64_t index = partials.index(item, 0, r);
    if (lane < num_splits) largest = partials.row_max[index + lane * partials.tile_rows];
    float sum = 0.0f;
    float4 acc = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (int first = part; first == part || first < num_splits; first += kBatch * units.warps) {
      const Batch batch(partials, index, column, first, units.warps, num_splits);
      if (first == part) {
        for (int split = lane + 32; split < num_splits; split += 32) {
          largest = fmaxf(largest, partials.row_max[index + static_cast<int64_t>(split) * partials.tile_rows]);
        }
#pragma unroll
        for (int lanes = 16; lanes > 0; lanes /= 2) {
          largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, lanes));
        }
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (first + i * units.warps >= num_splits) break;
        const float weight = weight_of(batch.row_max[i], largest);
        sum = fmaf(weight, batch.row_sum[i], sum);
        add(acc, weight, batch.acc[i]);
      }
    }
    if (units.warps > 1) {
      if (warp > 0) shared_acc[warp][lane] = acc;
      if (warp > 0 && lane == 0) shared_sum[warp] = sum;
      __syncthreads();
      if (warp == 0) {
#pragma unroll
        for (int w = 1; w < kWarps; ++w) {
          add(acc, 1.0f, shared_acc[w][lane]);
          sum += shared_sum[w];
        }
      }
      __syncthreads();  // the next unit may overwrite them
      if (warp > 0) continue;
    }

    const RowResult result(p.sinks, head, largest, sum);
    if (p.lse != nullptr && column == 0) p.lse[lse_at] = result.lse;
    store_columns(p, out_at, column,
                  make_float4(result.value(acc.x), result.value(acc.y), result.value(acc.z), result.value(acc.w)));
  }
  wait();  // also of thread blocks without work, so that this grid ends after the one before
}

Units units_of(const AttentionProblem& problem, const RowTiles& tiles, const Partials& partials) {
  constexpr int64_t kManyUnits = 4096;  // with so many, four warps each are more waves: untuned
  Units units;
  const int64_t rows = std::min<int64_t>(partials.tile_rows, problem.max_len_q * problem.heads_per_kv_head);
  units.rows_per_item = FastDiv(std::max<int64_t>(rows, 1));
  units.blocks_of_columns = partials.row_floats > kColumns ? 2 : 1;
  units.total = tiles.num_slots * problem.num_kv_heads * rows * units.blocks_of_columns;
  if (units.total > kManyUnits) units.warps = 1;
  return units;
}

unsigned blocks_of(const Units& units) {
  const int64_t per_block = kWarps / units.warps;
  return grid_of((units.total + per_block - 1) / per_block);
}

}  // namespace

void launch_combine_splits(const AttentionProblem& problem, const RowTiles& tiles, const SplitPlan& plan,
                           const Partials& partials, cudaStream_t stream) {
  const Units units = units_of(problem, tiles, partials);
  launch(combine_splits, "launch of combine_splits", blocks_of(units), kThreads, 0, stream, problem, tiles, plan,
         partials, units);
}

void chain_combine_splits(const AttentionProblem& problem, const RowTiles& tiles, const SplitPlan& plan,
                          const Partials& partials, int device, cudaStream_t stream) {
  if (!is_chainable<combine_splits>(device)) {
    launch_combine_splits(problem, tiles, plan, partials, stream);
    return;
  }
  const Units units = units_of(problem, tiles, partials);
  launch_chained(combine_splits, "launch of combine_splits", blocks_of(units), kThreads, 0, stream, problem, tiles,
                 plan, partials, units);
}

}  // namespace dlattn::cuda
