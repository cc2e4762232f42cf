// merge_states_any -- combines partial results over disjoint keys: any GPU, dtype, head_dim_v <= 256, stride.
//   computes  lse = log sum_i exp(lse_i), out = sum_i exp(lse_i - lse) out_i; a state with lse -inf adds nothing,
//             whatever its out holds; all of them empty: out 0, lse -inf
//   work      a row (batch, query, head) for 1 to 32 lanes of a warp, each 16 bytes (or an element) of it at a time
//   roles     every lane weighs the states by itself: their lse are broadcasts, few, and need no exchange
//   smem      none
//   sync      a warp barrier before lse is written: it may be a state's lse, which the other lanes of the row read. out
//             may be a state's out: a lane writes only what it alone has read
//   assumes   16-byte pieces: rows aligned and multiples of 16 bytes; else one element at a time
//   elsewhere arguments: merge_states.h; order of the states and launch: merge_states.cu
//   checked   tests_cpp/ops/test_merge_cuda.cpp
#pragma once

#include <cmath>
#include <cstdint>

#include "cuda/any/merge_states.h"
#include "cuda/attn/convert.cuh"

namespace dlattn::cuda {
namespace merge_rows {

struct Row {
  int64_t batch, query, head;
};

__device__ __forceinline__ Row row_at(const MergeShape& shape, int64_t row) {
  Row at;
  const int64_t queries = shape.num_heads.div(row);  // of all sequences
  at.head = row - queries * shape.num_heads.divisor;
  at.batch = shape.seqlen_q.div(queries);
  at.query = queries - at.batch * shape.seqlen_q.divisor;
  return at;
}

__device__ __forceinline__ float lse_of(const AttentionState& state, const Row& at) {
  return state
      .lse[at.batch * state.lse_stride_batch + at.head * state.lse_stride_head + at.query * state.lse_stride_seq];
}

template <typename T, bool kVector>
struct Piece {
  static constexpr int kElements = kVector ? 16 / static_cast<int>(sizeof(T)) : 1;

  static __device__ __forceinline__ void load(const T* at, float (&x)[kElements]) {
    if constexpr (!kVector) {
      x[0] = to_float(*at);
    } else {
      const uint4 all = *reinterpret_cast<const uint4*>(at);
      const uint32_t words[4] = {all.x, all.y, all.z, all.w};
      unpack<T>(words, x);
    }
  }

  static __device__ __forceinline__ void store(const float (&x)[kElements], T* at) {
    if constexpr (!kVector) {
      *at = from_float<T>(x[0]);
    } else {
      uint32_t words[4];
      pack<T>(x, words);
      *reinterpret_cast<uint4*>(at) = make_uint4(words[0], words[1], words[2], words[3]);
    }
  }
};

// Elements `column`.. of the row. Returns the sum of the weights, which is the same for every column.
template <typename T, bool kVector, int kMaxStates>
__device__ __forceinline__ float merge_piece(const MergeArgs<kMaxStates>& args, const Row& at, float largest,
                                             int column) {
  using P = Piece<T, kVector>;
  float acc[P::kElements] = {};
  float sum = 0.0f;
#pragma unroll 4
  for (int i = 0; i < args.num_states; ++i) {
    const AttentionState& state = args.states[i];
    const float lse = lse_of(state, at);
    float part[P::kElements];
    P::load(static_cast<const T*>(state.out) + at.batch * state.out_stride_batch + at.query * state.out_stride_seq +
                at.head * state.out_stride_head + column,
            part);
    const bool empty = lse == -INFINITY;
    const float weight = lse == largest ? 1.0f : expf(lse - largest);
    sum += empty ? 0.0f : weight;
#pragma unroll
    for (int j = 0; j < P::kElements; ++j) acc[j] = empty ? acc[j] : fmaf(weight, part[j], acc[j]);
  }
  const float scale = sum == 0.0f ? 0.0f : 1.0f / sum;
#pragma unroll
  for (float& x : acc) x *= scale;
  const MergeShape& shape = args.shape;
  P::store(acc, static_cast<T*>(shape.out) + at.batch * shape.out_stride_batch + at.query * shape.out_stride_seq +
                    at.head * shape.out_stride_head + column);
  return sum;
}

}  // namespace merge_rows

template <typename T, bool kVector, int kMaxStates>
__global__ void __launch_bounds__(kMergeThreads) merge_states_any(const __grid_constant__ MergeArgs<kMaxStates> args) {
  const MergeShape& shape = args.shape;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kMergeThreads + threadIdx.x;
  const int64_t index = shape.first_row + (thread >> shape.log2_lanes);
  const int lanes = 1 << shape.log2_lanes, lane = static_cast<int>(threadIdx.x) & (lanes - 1);
  const bool exists = index < shape.num_rows;
  merge_rows::Row at = {};
  float largest = -INFINITY, sum = 0.0f;
  if (exists) {
    at = merge_rows::row_at(shape, index);
#pragma unroll 4
    for (int i = 0; i < args.num_states; ++i) largest = fmaxf(largest, merge_rows::lse_of(args.states[i], at));
    constexpr int kElements = merge_rows::Piece<T, kVector>::kElements;
    for (int column = lane * kElements; column < shape.head_dim_v; column += lanes * kElements) {
      sum = merge_rows::merge_piece<T, kVector>(args, at, largest, column);
    }
  }
  __syncwarp();
  if (exists && lane == 0 && shape.lse != nullptr) {
    shape.lse[at.batch * shape.lse_stride_batch + at.head * shape.lse_stride_head + at.query * shape.lse_stride_seq] =
        largest + logf(sum);
  }
}

}  // namespace dlattn::cuda
