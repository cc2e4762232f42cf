// attention_decode_simt -- few query rows against many keys, without tensor cores: limited by reading the cache once.
//   computes  out = softmax(scale q k^T + mask) v, or the partial sums of a part of the keys (attn/partial.h)
//   work      one (part of the keys, row tile, kv head) item; kv heads are neighbours, so that tokens are read together
//   tile      up to kRows rows; a warp takes kTileKeys keys at a time, its 32 / kLanes groups of lanes kKeys each
//   roles     kLanes lanes hold a row of q, k, v (16 bytes a load); the warps take tiles in turn and merge at the end
//   registers all loads of a tile are issued before the first use: kKeys rows of k and of v per group of lanes
//   smem      for the merge of the warps only
//   assumes   nothing of alignment: 16-byte loads where rows allow, else element by element
//   elsewhere parts are merged in any/combine_splits.cu; many rows: attention_prefill_simt.cuh
//   checked   tests_cpp/ops/test_attention_cuda.cpp, test_ragged_cuda.cpp; speed: docs/kernels/simt.md
#pragma once

#include "cuda/attn/partial.h"
#include "cuda/attn/row_tile.h"
#include "cuda/attn/softmax.cuh"
#include "cuda/attn/store.cuh"
#include "cuda/simt/config_simt.h"

namespace dlattn::cuda {
namespace decode_simt {

// kElements consecutive elements of a row, spread over chunks of 16 bytes.
template <typename T, int kChunks>
struct Fragment {
  static constexpr int kVec = 16 / static_cast<int>(sizeof(T));
  uint4 words[kChunks];

  // `column`: of the lane's first element; chunks are `step` elements apart. What lies past `dim` is zero.
  __device__ __forceinline__ void load(const T* row, int column, int step, int dim, bool aligned, bool valid) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      words[c] = make_uint4(0, 0, 0, 0);
      const int at = column + c * step;
      if (!valid || at >= dim) continue;
      if (aligned) {
        words[c] = __ldg(reinterpret_cast<const uint4*>(row + at));
      } else {
        T elements[kVec];
#pragma unroll
        for (int i = 0; i < kVec; ++i) elements[i] = at + i < dim ? row[at + i] : from_float<T>(0.0f);
        memcpy(&words[c], elements, sizeof(uint4));
      }
    }
  }

  __device__ __forceinline__ void to_floats(float (&x)[kVec * kChunks]) const {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const uint32_t w[4] = {words[c].x, words[c].y, words[c].z, words[c].w};
      unpack<T>(w, x + kVec * c);
    }
  }
};

// Sums of kValues values across kLanes lanes: afterwards x[0] of a lane is the sum of value `owned_value`.
template <int kValues, int kLanes>
__device__ __forceinline__ void transpose_sum(float (&x)[kValues], int lane) {
  int lanes = kLanes / 2;
#pragma unroll
  for (int count = kValues / 2; count >= 1; count /= 2, lanes /= 2) {
    const bool upper = (lane & lanes) != 0;
#pragma unroll
    for (int i = 0; i < count; ++i) {
      const float send = upper ? x[i] : x[i + count];
      const float keep = upper ? x[i + count] : x[i];
      x[i] = keep + __shfl_xor_sync(0xffffffffu, send, lanes);
    }
  }
#pragma unroll
  for (; lanes >= 1; lanes /= 2) x[0] += __shfl_xor_sync(0xffffffffu, x[0], lanes);
}

// Which value a lane owns, and the first lane of its group that owns a value: the value's bits are the lane's upper ones.
template <int kValues, int kLanes>
__device__ __forceinline__ int owned_value(int lane) {
  return (lane & (kLanes - 1)) / (kLanes / kValues);
}
template <int kValues, int kLanes>
__device__ __forceinline__ int owner_of(int value) {
  return value * (kLanes / kValues);
}

template <typename T, class Config>
struct WarpState {
  static constexpr int kRows = Config::kRows, kKeys = Config::kKeys, kLanes = Config::kLanes;
  static constexpr int kElements = Config::kElements, kChunkStep = Config::kVec * kLanes;
  static constexpr int kTileKeys = Config::kTileKeys, kGroups = Config::kGroups;

  const AttentionProblem& p;
  const Sequence& sequence;
  const int64_t kv_head, first_row;
  const int num_rows;
  const int64_t first_key;                       // of the part; keys are counted from there
  const int num_keys;                            // of the part
  const int lane, lane_group, column;            // column: of the lane's first element
  const T *k_part, *v_part;                      // dense: the part's first key; paged: the cache; of this kv head
  int visible_begin[kRows], visible_end[kRows];  // of a row; one row alone sees the whole part
  float q[kRows][kElements];
  float acc[kRows][kElements];
  float row_max[kRows], row_sum[kRows];  // of the group's keys

  __device__ __forceinline__ WarpState(const AttentionProblem& problem, const Sequence& s, int64_t head, int64_t row,
                                       int rows, const KeyRange& keys)
      : p(problem),
        sequence(s),
        kv_head(head),
        first_row(row),
        num_rows(rows),
        first_key(keys.begin),
        num_keys(static_cast<int>(keys.end - keys.begin)),
        lane(static_cast<int>(threadIdx.x) & 31),
        lane_group(lane / kLanes),
        column((lane & (kLanes - 1)) * Config::kVec) {
    const int64_t dense_key = p.paged ? 0 : first_key;
    k_part = static_cast<const T*>(p.k) + sequence.k_base + kv_head * p.k_stride_head + dense_key * p.k_stride_seq;
    v_part = static_cast<const T*>(p.v) + sequence.v_base + kv_head * p.v_stride_head + dense_key * p.v_stride_seq;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      visible_begin[r] = in_part(sequence.key_begin(p, query_of(r)));
      visible_end[r] = in_part(sequence.key_end(p, query_of(r)));
      row_max[r] = -INFINITY;
      row_sum[r] = 0.0f;
#pragma unroll
      for (int e = 0; e < kElements; ++e) q[r][e] = acc[r][e] = 0.0f;
      if (r >= num_rows) continue;
      Fragment<T, Config::kChunks> x;
      const int64_t at = sequence.q_base + query_of(r) * p.q_stride_seq + head_of(r) * p.q_stride_head;
      x.load(static_cast<const T*>(p.q) + at, column, kChunkStep, p.head_dim, p.q_aligned, true);
      x.to_floats(q[r]);
#pragma unroll
      for (int e = 0; e < kElements; ++e) q[r][e] *= p.scale;
    }
  }

  __device__ __forceinline__ int64_t query_of(int row) const { return p.heads_per_kv_head_div.div(first_row + row); }
  __device__ __forceinline__ int64_t head_of(int row) const {
    return kv_head * p.heads_per_kv_head + (first_row + row - query_of(row) * p.heads_per_kv_head);
  }

  __device__ __forceinline__ int column_of(int element) const {
    return column + element / Config::kVec * kChunkStep + element % Config::kVec;
  }

  __device__ __forceinline__ int in_part(int64_t key) const {
    return static_cast<int>(min(max(key - first_key, int64_t{0}), static_cast<int64_t>(num_keys)));
  }

  // Where key `lane` of a warp's tile lies, in elements; paged only, looked up one tile ahead.
  struct KeyAddress {
    int64_t k, v;
  };
  __device__ __forceinline__ KeyAddress find_key(int begin) const {
    const int key = begin + lane;
    if (lane >= kTileKeys || key >= num_keys) return {0, 0};
    const PagedKey at(p, sequence.batch, first_key + key);
    return {at.page * p.k_stride_batch + at.row * p.k_stride_seq, at.page * p.v_stride_batch + at.row * p.v_stride_seq};
  }

  // Keys begin .. begin + kTileKeys, as far as there are so many. Key u of the group is begin + u kGroups + group.
  __device__ __forceinline__ void attend(int begin, const KeyAddress& address) {
    Fragment<T, Config::kChunks> k[kKeys], v[kKeys];
    if (!p.paged) {
      const T *k_at = k_part + (begin + lane_group) * p.k_stride_seq,
              *v_at = v_part + (begin + lane_group) * p.v_stride_seq;
#pragma unroll
      for (int u = 0; u < kKeys; ++u) {
        const bool valid = begin + u * kGroups + lane_group < num_keys;
        k[u].load(k_at, column, kChunkStep, p.head_dim, p.k_aligned, valid);
        v[u].load(v_at, column, kChunkStep, p.head_dim_v, p.v_aligned, valid);
        k_at += kGroups * p.k_stride_seq;
        v_at += kGroups * p.v_stride_seq;
      }
    } else {
#pragma unroll
      for (int u = 0; u < kKeys; ++u) {
        const bool valid = begin + u * kGroups + lane_group < num_keys;
        const int64_t k_at = __shfl_sync(0xffffffffu, static_cast<long long>(address.k), u * kGroups + lane_group);
        const int64_t v_at = __shfl_sync(0xffffffffu, static_cast<long long>(address.v), u * kGroups + lane_group);
        k[u].load(k_part + k_at, column, kChunkStep, p.head_dim, p.k_aligned, valid);
        v[u].load(v_part + v_at, column, kChunkStep, p.head_dim_v, p.v_aligned, valid);
      }
    }

    float scores[kRows][kKeys];  // later their exponentials
#pragma unroll
    for (int u = 0; u < kKeys; ++u) {
      float x[kElements];
      k[u].to_floats(x);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        scores[r][u] = 0.0f;
#pragma unroll
        for (int e = 0; e < kElements; ++e) scores[r][u] = fmaf(q[r][e], x[e], scores[r][u]);
      }
    }
    const int own_key = begin + owned_value<kKeys, kLanes>(lane) * kGroups + lane_group;
    const bool options = p.has_score_options();
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r >= num_rows) break;
      transpose_sum<kKeys, kLanes>(scores[r], lane);
      float score = scores[r][0];
      const bool hidden = kRows > 1 && (own_key < visible_begin[r] || own_key >= visible_end[r]);
      if (own_key >= num_keys || hidden) {
        score = -INFINITY;
      } else if (options) {
        score = apply_score_options(p, sequence, head_of(r), query_of(r), first_key + own_key, score);
      }
      float largest = score;
#pragma unroll
      for (int lanes = kLanes / 2; lanes >= kLanes / kKeys; lanes /= 2) {
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, lanes));
      }
      const Rescale step = rescale(row_max[r], largest);
      row_max[r] = step.row_max;
      const float weight = exp_of(score - step.subtract);
      float sum = 0.0f;
#pragma unroll
      for (int u = 0; u < kKeys; ++u) {
        scores[r][u] = __shfl_sync(0xffffffffu, weight, lane_group * kLanes + owner_of<kKeys, kLanes>(u));
        sum += scores[r][u];
      }
      row_sum[r] = fmaf(row_sum[r], step.factor, sum);
#pragma unroll
      for (int e = 0; e < kElements; ++e) acc[r][e] *= step.factor;
    }
#pragma unroll
    for (int u = 0; u < kKeys; ++u) {
      float x[kElements];
      v[u].to_floats(x);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (r >= num_rows) break;
#pragma unroll
        for (int e = 0; e < kElements; ++e) acc[r][e] = fmaf(scores[r][u], x[e], acc[r][e]);
      }
    }
  }

  // One state of another part of the keys into this one.
  __device__ __forceinline__ void merge(int r, float other_max, float other_sum, const float (&other)[kElements]) {
    const Rescale step = rescale(row_max[r], other_max);
    const float weight = other_max == step.row_max ? 1.0f : exp_of(other_max - step.subtract);
    row_max[r] = step.row_max;
    row_sum[r] = fmaf(row_sum[r], step.factor, other_sum * weight);
#pragma unroll
    for (int e = 0; e < kElements; ++e) acc[r][e] = fmaf(acc[r][e], step.factor, other[e] * weight);
  }

  __device__ __forceinline__ void merge_groups() {
#pragma unroll
    for (int lanes = kLanes; lanes < 32; lanes *= 2) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (r >= num_rows) break;
        float other[kElements];
#pragma unroll
        for (int e = 0; e < kElements; ++e) other[e] = __shfl_xor_sync(0xffffffffu, acc[r][e], lanes);
        const float other_max = __shfl_xor_sync(0xffffffffu, row_max[r], lanes);
        const float other_sum = __shfl_xor_sync(0xffffffffu, row_sum[r], lanes);
        merge(r, other_max, other_sum, other);
      }
    }
  }
};

// Results of the warps but the first, on their way to it.
template <class Config>
struct SharedStorage {
  float acc[Config::kWarps - 1][Config::kRows][Config::kElements][Config::kLanes];
  float row_max[Config::kWarps - 1][Config::kRows], row_sum[Config::kWarps - 1][Config::kRows];
};

template <typename T, class Config>
__global__ __launch_bounds__(Config::kThreads, Config::kMinBlocks) void attention_decode_simt(
    const __grid_constant__ AttentionProblem problem, const __grid_constant__ RowTiles tiles,
    const __grid_constant__ SplitPlan plan, const __grid_constant__ Partials partials, int64_t num_items) {
  using Warp = WarpState<T, Config>;
  static_assert(Config::kLanes % Config::kKeys == 0, "a lane owns the score of one key");
  static_assert(Config::kTileKeys <= 32, "a lane looks up the page of one key");
  __shared__ SharedStorage<Config> shared;
  const int warp_index = static_cast<int>(threadIdx.x) / 32;
  const int64_t total = num_items * plan.max_splits;
  for (int64_t work = blockIdx.x; work < total; work += gridDim.x) {
    const int64_t outer = problem.kv_heads_div.div(work);  // split * slots + slot
    const int64_t kv_head = work - outer * problem.num_kv_heads;
    const int64_t split = plan.max_splits == 1 ? 0 : outer / tiles.num_slots;
    const RowTile tile = tiles.find(outer - split * tiles.num_slots);
    if (tile.first_row < 0) continue;
    const Sequence sequence(problem, tile.batch);
    const int num_rows = static_cast<int>(
        min(static_cast<int64_t>(Config::kRows), sequence.len_q * problem.heads_per_kv_head - tile.first_row));
    const KeyRange all = sequence.visible_keys(problem, problem.heads_per_kv_head_div.div(tile.first_row),
                                               problem.heads_per_kv_head_div.div(tile.first_row + num_rows - 1));
    const int64_t num_splits = plan.num_splits(all.end - all.begin);
    if (split >= num_splits) continue;
    const KeyRange keys = plan.part(all, split);

    Warp warp(problem, sequence, kv_head, tile.first_row, num_rows, keys);
    int begin = warp_index * Config::kTileKeys;
    typename Warp::KeyAddress address = {0, 0};
    if (problem.paged) address = warp.find_key(begin);
    while (begin < warp.num_keys) {
      const int next = begin + Config::kWarps * Config::kTileKeys;
      typename Warp::KeyAddress ahead = {0, 0};
      if (problem.paged) ahead = warp.find_key(next);
      warp.attend(begin, address);
      address = ahead;
      begin = next;
    }
    warp.merge_groups();

    __syncthreads();  // the item before has been read
    if (warp_index > 0 && warp.lane_group == 0) {
#pragma unroll
      for (int r = 0; r < Config::kRows; ++r) {
        if (r >= num_rows) break;
#pragma unroll
        for (int e = 0; e < Config::kElements; ++e) shared.acc[warp_index - 1][r][e][warp.lane] = warp.acc[r][e];
        if (warp.lane == 0) {
          shared.row_max[warp_index - 1][r] = warp.row_max[r];
          shared.row_sum[warp_index - 1][r] = warp.row_sum[r];
        }
      }
    }
    __syncthreads();
    if (warp_index > 0 || warp.lane_group > 0) continue;
    const int64_t item = (outer - split * tiles.num_slots) * problem.num_kv_heads + kv_head;
#pragma unroll
    for (int r = 0; r < Config::kRows; ++r) {
      if (r >= num_rows) break;
#pragma unroll
      for (int w = 0; w < Config::kWarps - 1; ++w) {
        float other[Config::kElements];
#pragma unroll
        for (int e = 0; e < Config::kElements; ++e) other[e] = shared.acc[w][r][e][warp.lane];
        warp.merge(r, shared.row_max[w][r], shared.row_sum[w][r], other);
      }
      if (num_splits > 1) {
        const int64_t index = partials.index(item, split, r);
        if (warp.lane == 0) {
          partials.row_max[index] = warp.row_max[r];
          partials.row_sum[index] = warp.row_sum[r];
        }
#pragma unroll
        for (int c = 0; c < Config::kElements; c += 4) {
          const int column = warp.column_of(c);
          if (column >= partials.row_floats) continue;
          *reinterpret_cast<float4*>(partials.acc + index * partials.row_floats + column) =
              make_float4(warp.acc[r][c], warp.acc[r][c + 1], warp.acc[r][c + 2], warp.acc[r][c + 3]);
        }
        continue;
      }
      const int64_t query = warp.query_of(r), head = warp.head_of(r);
      const RowResult result(problem.sinks, head, warp.row_max[r], warp.row_sum[r]);
      if (problem.lse != nullptr && warp.lane == 0) {
        problem.lse[sequence.lse_base + head * problem.lse_stride_head + query] = result.lse;
      }
      const int64_t at = sequence.out_base + query * problem.out_stride_seq + head * problem.out_stride_head;
#pragma unroll
      for (int c = 0; c < Config::kElements; c += 4) {
        store_columns(problem, at, warp.column_of(c),
                      make_float4(result.value(warp.acc[r][c]), result.value(warp.acc[r][c + 1]),
                                  result.value(warp.acc[r][c + 2]), result.value(warp.acc[r][c + 3])));
      }
    }
  }
}

}  // namespace decode_simt
}  // namespace dlattn::cuda
