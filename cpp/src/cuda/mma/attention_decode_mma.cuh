// attention_decode_mma -- few query rows against many keys, with tensor cores: limited by reading the cache once.
//   computes  out = softmax(scale q k^T + mask) v, or the partial sums of a part of the keys (attn/partial.h)
//   work      one (part of the keys, row tile, kv head) item; kv heads are neighbours, so that tokens are read together
//   tile      16 rows x 16 keys (32 at head_dim 64) of a warp; rows that do not exist are zeros
//   roles     the 4 warps take tiles in turn, each with its own online softmax, and merge at the end
//   smem      for each warp a ring of kSlots tiles of k and of v (decode_ring.cuh), in the end its result; q
//   sync      in the loop a warp waits for its own copies only: two groups a tile (k, v), 2 kSlots groups in flight
//   assumes   float16, bfloat16; rows of q, k, v on 16 bytes; head_dim, head_dim_v multiples of 8
//   elsewhere parts are merged in any/combine_splits.cu; other dtypes and alignments: simt/attention_decode_simt.cuh
//   checked   tests_cpp/ops/test_attention_cuda.cpp, test_ragged_cuda.cpp
#pragma once

#include "cuda/attn/partial.h"
#include "cuda/attn/row_tile.h"
#include "cuda/attn/softmax.cuh"
#include "cuda/attn/store.cuh"
#include "cuda/mma/decode_ring.cuh"
#include "cuda/ptx/grid_dependency.cuh"
#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/mma_sync.cuh"

namespace dlattn::cuda {
namespace decode_mma {

// The last four: what only masks and the end of an item need waits here, where it costs the loop no registers.
template <class Config>
struct SharedStorage {
  alignas(128) unsigned char rings[Config::kWarps][Config::kRingBytes];
  alignas(128) unsigned char q[Config::kRows * Config::kRowBytes];
  float row_max[Config::kWarps][Config::kRows], row_sum[Config::kWarps][Config::kRows];
  int2 visible[Config::kRows];  // the keys of the part that a row sees, from .x to .y; none if there is no such row
  alignas(16) Sequence sequence;
  Item item;
  int64_t partial;  // index of the part's first row (attn/partial.h); -1: the keys are not split
};

// The state of a warp: lane 4 g + t holds rows g and g + 8 (index 0 and 1).
template <typename T, class Config>
struct WarpState {
  using Rows = SwizzledRows<Config::kHeadDim>;
  static constexpr int kTileKeys = Config::kTileKeys, kKeyBlocks = kTileKeys / 8;
  static constexpr int kSteps = Config::kHeadDim / 16;  // of 16 columns
  static constexpr int kChains =
      kKeyBlocks >= 4 ? 1 : 2;  // independent sums of a score: an MMA waits for the one before

  const AttentionProblem& p;
  const SharedStorage<Config>& shared;
  const int lane;
  const uint32_t smem_k, smem_v, smem_q;   // of the lane, as ldmatrix wants it; of slot 0
  int all_visible_begin, all_visible_end;  // keys that all rows see
  uint32_t q[Config::kQueryInRegisters ? kSteps : 1][4];
  float acc[2 * kSteps][4];      // block of 8 columns; rows g, g, g + 8, g + 8
  float row_max[2], row_sum[2];  // the sum: of the lane's keys

  __device__ __forceinline__ WarpState(const AttentionProblem& problem, const Sequence& sequence, const Item& item,
                                       const SharedStorage<Config>& s, uint32_t ring, uint32_t q_at)
      : p(problem),
        shared(s),
        lane(static_cast<int>(threadIdx.x) & 31),
        smem_k(ring + Rows::offset(lane % 8 + 8 * (lane / 16), lane / 8 % 2)),
        smem_v(ring + Config::kSlots * Config::kTileBytes + Rows::offset(lane % 16, lane / 16)),
        smem_q(q_at + Rows::offset(lane % 16, lane / 16)) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      row_max[h] = -INFINITY;
      row_sum[h] = 0.0f;
    }
    all_visible_begin = item.in_part(sequence.key_begin(p, item.query_of(p, item.num_rows - 1)));
    all_visible_end = item.in_part(sequence.key_end(p, item.query_of(p, 0)));
    if (p.has_score_options()) all_visible_end = 0;
#pragma unroll
    for (int n = 0; n < 2 * kSteps; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) acc[n][c] = 0.0f;
    }
  }

  __device__ __forceinline__ void load_q() {
    if constexpr (Config::kQueryInRegisters) {
#pragma unroll
      for (int s = 0; s < kSteps; ++s) ptx::ldmatrix_x4(q[s], Rows::behind(smem_q, 32 * s));
    }
  }

  // scale q k^T of the tile in a slot.
  __device__ __forceinline__ void compute_scores(int slot, float (&scores)[kKeyBlocks][4]) {
    float sums[kChains][kKeyBlocks][4];
#pragma unroll
    for (int i = 0; i < kChains * kKeyBlocks * 4; ++i) (&sums[0][0][0])[i] = 0.0f;
    const uint32_t tile = smem_k + slot * Config::kTileBytes;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      uint32_t a[4];
      if constexpr (!Config::kQueryInRegisters) ptx::ldmatrix_x4(a, Rows::behind(smem_q, 32 * s));
#pragma unroll
      for (int n = 0; n < kKeyBlocks; n += 2) {
        uint32_t b[4];
        ptx::ldmatrix_x4(b, Rows::behind(tile, 32 * s) + 8 * n * Config::kRowBytes);
        if constexpr (Config::kQueryInRegisters) {
          ptx::mma_m16n8k16<T>(sums[s % kChains][n], q[s], b[0], b[1]);
          ptx::mma_m16n8k16<T>(sums[s % kChains][n + 1], q[s], b[2], b[3]);
        } else {
          ptx::mma_m16n8k16<T>(sums[s % kChains][n], a, b[0], b[1]);
          ptx::mma_m16n8k16<T>(sums[s % kChains][n + 1], a, b[2], b[3]);
        }
      }
    }
#pragma unroll
    for (int n = 0; n < kKeyBlocks; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        float sum = sums[0][n][c];
        if constexpr (kChains == 2) sum += sums[1][n][c];
        scores[n][c] = sum * p.scale;
      }
    }
  }

  // Only for tiles of which not everything is visible as it is.
  __device__ __forceinline__ void apply_mask(int begin, float (&scores)[kKeyBlocks][4]) const {
    if (p.has_score_options()) apply_options(begin, scores);
    const int2 visible[2] = {shared.visible[lane / 4], shared.visible[lane / 4 + 8]};
#pragma unroll
    for (int n = 0; n < kKeyBlocks; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int key = begin + 8 * n + 2 * (lane % 4) + c % 2;
        if (key < visible[c / 2].x || key >= visible[c / 2].y) scores[n][c] = -INFINITY;
      }
    }
  }

  // The scores take turns in one register and one piece of code, which unrolled would cost every tile registers.
  __device__ __forceinline__ void apply_options(int begin, float (&scores)[kKeyBlocks][4]) const {
    constexpr int kScores = 4 * kKeyBlocks;
#pragma unroll 1
    for (int i = 0; i < kScores; ++i) {
      const int row = lane / 4 + i / 2 % 2 * 8, key = begin + i / 4 * 8 + 2 * (lane % 4) + i % 2;
      const int2 visible = shared.visible[row];
      float score = scores[0][0];
      if (key >= visible.x && key < visible.y) {
        const Item& item = shared.item;
        const int64_t query = item.query_of(p, row), head = item.head_of(p, row, query);
        score = apply_score_options(p, shared.sequence, head, query, item.first_key + key, score);
      }
#pragma unroll
      for (int j = 0; j + 1 < kScores; ++j) scores[j / 4][j % 4] = scores[(j + 1) / 4][(j + 1) % 4];
      scores[kKeyBlocks - 1][3] = score;
    }
  }

  // Scores to probabilities, in place; the state so far to the new maximum.
  __device__ __forceinline__ void online_softmax(float (&scores)[kKeyBlocks][4]) {
    float factor[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float largest = -INFINITY;
#pragma unroll
      for (int n = 0; n < kKeyBlocks; ++n) largest = fmaxf(largest, fmaxf(scores[n][2 * h], scores[n][2 * h + 1]));
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
      const Rescale step = rescale(row_max[h], largest);
      row_max[h] = step.row_max;
      factor[h] = step.factor;
      float sum = 0.0f;
#pragma unroll
      for (int n = 0; n < kKeyBlocks; ++n) {
#pragma unroll
        for (int c = 2 * h; c < 2 * h + 2; ++c) {
          scores[n][c] = exp_of(scores[n][c] - step.subtract);
          sum += scores[n][c];
        }
      }
      row_sum[h] = fmaf(row_sum[h], step.factor, sum);
    }
    if (__all_sync(0xffffffffu, factor[0] == 1.0f && factor[1] == 1.0f)) return;  // most tiles have no new maximum
#pragma unroll
    for (int n = 0; n < 2 * kSteps; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) acc[n][c] *= factor[c / 2];
    }
  }

  __device__ __forceinline__ void accumulate_pv(int slot, const float (&weights)[kKeyBlocks][4]) {
    const uint32_t tile = smem_v + slot * Config::kTileBytes;
#pragma unroll
    for (int i = 0; i < kKeyBlocks / 2; ++i) {
      const float (&low)[4] = weights[2 * i], (&high)[4] = weights[2 * i + 1];
      const uint32_t a[4] = {pack<T>(low[0], low[1]), pack<T>(low[2], low[3]), pack<T>(high[0], high[1]),
                             pack<T>(high[2], high[3])};
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        uint32_t b[4];
        ptx::ldmatrix_x4_trans(b, Rows::behind(tile, 32 * s) + 16 * i * Config::kRowBytes);
        ptx::mma_m16n8k16<T>(acc[2 * s], a, b[0], b[1]);
        ptx::mma_m16n8k16<T>(acc[2 * s + 1], a, b[2], b[3]);
      }
    }
  }

  // For the merge: accumulators into the warp's ring, maximum and sum beside it.
  __device__ __forceinline__ void leave_result(int num_rows, float* result, float* all_row_max, float* all_row_sum) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      row_sum[h] += __shfl_xor_sync(0xffffffffu, row_sum[h], 1);
      row_sum[h] += __shfl_xor_sync(0xffffffffu, row_sum[h], 2);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = lane / 4 + 8 * h;
      if (row >= num_rows) continue;
      float* at = result + row * Config::kResultPitch + 2 * (lane % 4);
#pragma unroll
      for (int n = 0; n < 2 * kSteps; ++n) {
        *reinterpret_cast<float2*>(at + 8 * n) = make_float2(acc[n][2 * h], acc[n][2 * h + 1]);
      }
      if (lane % 4 == 0) all_row_max[row] = row_max[h], all_row_sum[row] = row_sum[h];
    }
  }
};

// Four columns of a row, of all warps.
template <class Config>
struct MergedColumns {
  float row_max = -INFINITY, row_sum = 0.0f;
  float4 acc = make_float4(0.0f, 0.0f, 0.0f, 0.0f);

  __device__ __forceinline__ MergedColumns(const SharedStorage<Config>& shared, int row, int column) {
#pragma unroll
    for (int w = 0; w < Config::kWarps; ++w) row_max = fmaxf(row_max, shared.row_max[w][row]);
#pragma unroll
    for (int w = 0; w < Config::kWarps; ++w) {
      const float of_warp = shared.row_max[w][row];
      const float weight = of_warp == row_max ? 1.0f : exp_of(of_warp - row_max);
      const float4 x = *reinterpret_cast<const float4*>(reinterpret_cast<const float*>(shared.rings[w]) +
                                                        row * Config::kResultPitch + column);
      row_sum = fmaf(weight, shared.row_sum[w][row], row_sum);
      acc.x = fmaf(weight, x.x, acc.x);
      acc.y = fmaf(weight, x.y, acc.y);
      acc.z = fmaf(weight, x.z, acc.z);
      acc.w = fmaf(weight, x.w, acc.w);
    }
  }
};

// The warps' results merged: into out and lse, or as partial ones.
template <class Config>
__device__ __forceinline__ void store_results(const AttentionProblem& p, const Partials& partials,
                                              const SharedStorage<Config>& shared) {
  constexpr int kQuads = Config::kHeadDim / 4;
  const Item item = shared.item;
  const int64_t out_base = shared.sequence.out_base, lse_base = shared.sequence.lse_base, partial = shared.partial;
  for (int at = static_cast<int>(threadIdx.x); at < item.num_rows * kQuads; at += Config::kThreads) {
    const int row = at / kQuads, column = at % kQuads * 4;
    const MergedColumns<Config> merged(shared, row, column);
    if (partial >= 0) {
      const int64_t index = partial + row;
      if (column == 0) {
        partials.row_max[index] = merged.row_max;
        partials.row_sum[index] = merged.row_sum;
      }
      if (column < partials.row_floats) {
        *reinterpret_cast<float4*>(partials.acc + index * partials.row_floats + column) = merged.acc;
      }
      continue;
    }
    const int64_t query = item.query_of(p, row), head = item.head_of(p, row, query);
    const RowResult result(p.sinks, head, merged.row_max, merged.row_sum);
    if (p.lse != nullptr && column == 0) p.lse[lse_base + head * p.lse_stride_head + query] = result.lse;
    store_columns(p, out_base + query * p.out_stride_seq + head * p.out_stride_head, column,
                  make_float4(result.value(merged.acc.x), result.value(merged.acc.y), result.value(merged.acc.z),
                              result.value(merged.acc.w)));
  }
}

template <typename T, class Config>
__global__ __launch_bounds__(Config::kThreads, Config::kMinBlocks) void attention_decode_mma(
    const __grid_constant__ AttentionProblem problem, const __grid_constant__ RowTiles tiles,
    const __grid_constant__ SplitPlan plan, const __grid_constant__ Partials partials,
    const __grid_constant__ FastDiv slots_div, int64_t total) {
  static_assert(sizeof(SharedStorage<Config>) == Config::kSharedBytes);
  constexpr int kGroupsBehind = 2 * Config::kSlots - 1;
  extern __shared__ __align__(128) unsigned char memory[];
  auto& shared = *reinterpret_cast<SharedStorage<Config>*>(memory);
  ptx::grid_dependency_wait();
  ptx::launch_dependents();  // combine_splits waits for the end of this grid
  const int warp_index = static_cast<int>(threadIdx.x) / 32;
  const uint32_t ring = ptx::smem_address(shared.rings[warp_index]), smem_q = ptx::smem_address(shared.q);

  for (int64_t work = blockIdx.x; work < total; work += gridDim.x) {
    const int64_t outer = problem.kv_heads_div.div(work);  // split * slots + slot
    const int64_t split = slots_div.div(outer), slot_index = outer - split * tiles.num_slots;
    Item item;
    item.kv_head = work - outer * problem.num_kv_heads;
    const RowTile tile = tiles.find(slot_index);
    if (tile.first_row < 0) continue;
    const Sequence sequence(problem, tile.batch);
    item.first_row = tile.first_row;
    item.num_rows = static_cast<int>(
        min(static_cast<int64_t>(Config::kRows), sequence.len_q * problem.heads_per_kv_head - tile.first_row));
    const KeyRange all =
        sequence.visible_keys(problem, item.query_of(problem, 0), item.query_of(problem, item.num_rows - 1));
    const int64_t chunk = plan.chunk(all.end - all.begin);
    if (split > 0 && all.begin + split * chunk >= all.end) continue;
    item.first_key = all.begin + split * chunk;
    item.num_keys = static_cast<int>(min(chunk, all.end - item.first_key));

    copy_q<T, Config>(problem, sequence, item, smem_q);
    ptx::cp_async_commit();

    using Warp = WarpState<T, Config>;
    Copies<T, Config> copies(problem, sequence, item, warp_index, ring);
    typename Copies<T, Config>::Page pages[Config::kSlots + 1] = {};
    if (problem.paged) {
#pragma unroll
      for (int s = 0; s <= Config::kSlots; ++s) pages[s] = copies.find_page(copies.begin + s * copies.kStep);
    }
    copies.page = pages[0];
    int begin = copies.begin;
#pragma unroll
    for (int s = 0; s < Config::kSlots; ++s) {
      copies.copy_k(s);
      copies.copy_v(s);
      copies.advance(pages[s + 1]);
    }
    if (threadIdx.x < Config::kRows) {
      const int row = static_cast<int>(threadIdx.x);
      const int64_t query = item.query_of(problem, row);
      shared.visible[row] = row >= item.num_rows ? make_int2(0, 0)
                                                 : make_int2(item.in_part(sequence.key_begin(problem, query)),
                                                             item.in_part(sequence.key_end(problem, query)));
    }
    if (threadIdx.x == 0) {
      const bool is_split = all.end - all.begin > chunk;
      const int64_t first = partials.index(slot_index * problem.num_kv_heads + item.kv_head, split, 0);
      shared.sequence = sequence;
      shared.item = item;
      shared.partial = is_split ? first : -1;
    }
    Warp warp(problem, sequence, item, shared, ring, smem_q);
    ptx::cp_async_wait<2 * Config::kSlots>();
    __syncthreads();  // q is there, and what waits beside it
    warp.load_q();

    for (int slot = 0; begin < item.num_keys; begin += copies.kStep) {
      float scores[Warp::kKeyBlocks][4];  // then their exponentials
      ptx::cp_async_wait<kGroupsBehind>();
      __syncwarp();  // k is there, of all lanes
      warp.compute_scores(slot, scores);
      __syncwarp();  // all lanes have read it
      typename Copies<T, Config>::Page next = {};
      if (problem.paged) next = copies.find_page(copies.begin + copies.kStep);
      copies.copy_k(slot);
      if (begin < warp.all_visible_begin || begin + Warp::kTileKeys > warp.all_visible_end) {
        warp.apply_mask(begin, scores);
      }
      warp.online_softmax(scores);
      ptx::cp_async_wait<kGroupsBehind>();
      __syncwarp();  // so is v
      warp.accumulate_pv(slot, scores);
      __syncwarp();
      copies.copy_v(slot);
      copies.advance(next);
      slot = slot + 1 == Config::kSlots ? 0 : slot + 1;
    }

    ptx::cp_async_wait<0>();
    __syncwarp();  // the ring is free
    warp.leave_result(shared.item.num_rows, reinterpret_cast<float*>(shared.rings[warp_index]),
                      shared.row_max[warp_index], shared.row_sum[warp_index]);
    __syncthreads();
    store_results(problem, partials, shared);
    __syncthreads();  // the results have been read: the next item may fill the rings
  }
}

}  // namespace decode_mma
}  // namespace dlattn::cuda
