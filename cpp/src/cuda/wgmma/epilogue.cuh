// The end of an item of attention_prefill_wgmma: what a consumer warp group writes.
#pragma once

#include "cuda/attn/convert.cuh"
#include "cuda/attn/partial.h"
#include "cuda/attn/softmax.cuh"
#include "cuda/ptx/special.cuh"
#include "cuda/ptx/stmatrix.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/wgmma/producer.cuh"
#include "cuda/wgmma/storage.cuh"

namespace dlattn::cuda {
namespace prefill_wgmma {

template <typename T, class Config>
struct Epilogue {
  static constexpr int kHeadDim = Config::kHeadDim, kOutPanels = Config::kOutPanels;

  const AttentionProblem& p;
  SharedStorage<T, Config>& smem;
  const WorkItem& item;
  const int group, warp, lane, num_rows;  // num_rows: of the group

  __device__ __forceinline__ Epilogue(const AttentionProblem& problem, SharedStorage<T, Config>& storage,
                                      const WorkItem& work, int index)
      : p(problem),
        smem(storage),
        item(work),
        group(index),
        warp(ptx::thread_id() / 32 % 4),
        lane(ptx::lane_id()),
        num_rows(work.rows_of(index)) {}

  // Row i of a thread, in the group.
  __device__ __forceinline__ int row_of(int i) const { return warp * 16 + lane / 4 + 8 * i; }

  // Writes lse. What the row's results are multiplied by; negative: they are 0.
  __device__ __forceinline__ float finish_row(int i, float row_max, float row_sum) const {
    const RowResult result(p.sinks, item.head, row_max, row_sum);
    const int row = row_of(i);
    if (p.lse != nullptr && lane % 4 == 0 && row < num_rows) p.lse[lse_at() + row] = result.lse;
    return row_sum == 0.0f || result.sum == 0.0f ? -1.0f : result.factor / result.sum;
  }

  __device__ __forceinline__ void store_partial(const Partials& partials, const float (&acc)[kHeadDim / 2], int i,
                                                float row_max, float row_sum) const {
    const int row = row_of(i);
    if (row >= num_rows) return;
    const int64_t work = static_cast<int64_t>(item.slot) * p.num_heads + item.head;
    const int64_t index = partials.index(work, item.part, group * 64 + row);
    if (lane % 4 == 0) partials.row_max[index] = row_max, partials.row_sum[index] = row_sum;
    float* to = partials.acc + index * partials.row_floats;
#pragma unroll
    for (int j = 0; j < kHeadDim / 8; ++j) {
      const int column = 8 * j + 2 * (lane % 4);
      if (column < partials.row_floats) {
        const float2 pair = make_float2(acc[4 * j + 2 * i], acc[4 * j + 2 * i + 1]);
        *reinterpret_cast<float2*>(to + column) = row_sum == 0.0f ? make_float2(0.0f, 0.0f) : pair;  // may be NaN
      }
    }
  }

  // Each warp its 16 rows.
  __device__ __forceinline__ void store_out(const TensorMaps& maps, const float (&acc)[kHeadDim / 2],
                                            const float (&factor)[2]) const {
    // Hidden values may be NaN.
    const auto pair = [&](int x, int i) {
      const float f = factor[i];
      return f < 0.0f ? 0u : pack<T>(acc[x] * f, acc[x + 1] * f);
    };
    const int left = num_rows - warp * 16;
    if constexpr (kOutPanels == 0) {
      store_from_registers(pair, left);
    } else {
      store_by_copy(maps, pair, left);
    }
  }

 private:
  // Through shared memory: from there rows are copied by TMA, or by the threads if the copy would write rows of another sequence.
  template <typename Pair>
  __device__ __forceinline__ void store_by_copy(const TensorMaps& maps, const Pair& pair, int left) const {
    const int first_row = group * 64 + warp * 16, row = lane % 16;
    if (lane == 0) {  // the warp's copy before has read its rows; of the same item, even written
      if (item.careful) {
        ptx::bulk_wait<0>();
      } else {
        ptx::bulk_wait_read<0>();
      }
    }
    __syncwarp();
#pragma unroll
    for (int j = 0; j < kHeadDim / 16; ++j) {
      const int chunk = (2 * (j % 4) + lane / 16) ^ (row & 7);
      const uint32_t words[4] = {pair(8 * j, 0), pair(8 * j + 2, 1), pair(8 * j + 4, 0), pair(8 * j + 6, 1)};
      ptx::stmatrix_x4(ptx::smem_address(smem.out[j / 4][first_row + row]) + 16 * chunk, words);
    }
    ptx::fence_async_shared();
    __syncwarp();
    if (p.ragged_q && left < 16) {
      copy_rows(left);
    } else if (lane == 0 && left > 0) {
#pragma unroll
      for (int panel = 0; panel < kOutPanels; ++panel) {
        if (panel * 64 >= p.head_dim_v) break;
        ptx::tma_store_4d(&maps.out, ptx::smem_address(smem.out[panel][first_row]), panel * 64, item.q_row + first_row,
                          item.head, item.q_batch);
      }
      ptx::bulk_commit();
    }
  }

  // Threads exchange words with their neighbours, so that each has 8 bytes of a row and a quad 32, in which memory is written.
  // 16 bytes each take twice as many exchanges, and longer.
  template <typename Pair>
  __device__ __forceinline__ void store_from_registers(const Pair& pair, int left) const {
    const bool upper = lane % 2 == 1;
    const int column = 8 * (lane % 2) + 4 * (lane % 4 / 2);
    T* to = static_cast<T*>(p.out) + item.q_batch * p.out_stride_batch + item.head * p.out_stride_head +
            static_cast<int64_t>(item.q_row + group * 64 + warp * 16 + lane / 4) * p.out_stride_seq + column;
#pragma unroll
    for (int j = 0; j < kHeadDim / 8; j += 2) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        uint32_t first = pair(4 * j + 2 * i, i), second = pair(4 * j + 4 + 2 * i, i);
        exchange(first, second, upper);
        if (lane / 4 + 8 * i < left && 8 * j + column < p.head_dim_v) {
          *reinterpret_cast<uint2*>(to + 8 * i * p.out_stride_seq + 8 * j) = make_uint2(first, second);
        }
      }
    }
  }
  // With the lane next to this one: the upper one's first word for the lower one's second.
  __device__ __forceinline__ static void exchange(uint32_t& first, uint32_t& second, bool upper) {
    const uint32_t got = __shfl_xor_sync(0xffffffffu, upper ? first : second, 1);
    (upper ? first : second) = got;
  }

  // Of the group's first row.
  __device__ __forceinline__ int64_t lse_at() const {
    return item.q_batch * p.lse_stride_batch + item.head * p.lse_stride_head + item.q_row + group * 64;
  }

  // The first `left` of the warp's rows, 4 at a time.
  __device__ __forceinline__ void copy_rows(int left) const {
    const int first_row = group * 64 + warp * 16;
    T* to = static_cast<T*>(p.out) + item.q_batch * p.out_stride_batch + item.head * p.out_stride_head;
#pragma unroll 1
    for (int row = lane / 8; row < left; row += 4) {
      const int64_t at = static_cast<int64_t>(item.q_row + first_row + row) * p.out_stride_seq;
#pragma unroll
      for (int panel = 0; panel < kOutPanels; ++panel) {
        const int column = panel * 64 + lane % 8 * 8;
        if (column >= p.head_dim_v) continue;
        *reinterpret_cast<uint4*>(to + at + column) =
            reinterpret_cast<const uint4*>(smem.out[panel][first_row + row])[lane % 8 ^ (row & 7)];
      }
    }
  }
};

}  // namespace prefill_wgmma
}  // namespace dlattn::cuda
