// attention_prefill_simt -- forward attention without tensor cores, in float32: any GPU, dtype, head_dim <= 256, stride, option.
//   computes  out = softmax(scale q k^T + mask) v;  lse = natural log of the row sum (optional)
//   work      one (row tile, kv head) item; the rows of all heads that share the kv head share the tile; causal: the longest
//             tiles of all heads first (find_work)
//   tile      kTileQ rows x kTileKV keys; a thread holds rows/8 x keys/16 scores and rows/8 x head_dim/16 results
//   roles     128 threads as 8 x 16; a row belongs to the 16 lanes of half a warp, so its softmax needs shuffles only
//   smem      q, k, v, probabilities as float32 (config_simt.h: 40..113 KiB); in odd rows of q and p 64-byte halves change
//             places, rows of k are padded by 16 bytes: no bank conflicts
//   sync      v of this tile is copied while scores are computed, k of the next one while values are summed (cp.async from
//             sm_80 on, if float32 and aligned); two block barriers a tile
//   assumes   nothing of alignment: 16-byte copies where rows allow, else element by element
//   elsewhere few rows: attention_decode_simt.cuh
//   checked   tests_cpp/ops/test_attention_cuda.cpp, test_ragged_cuda.cpp; speed: docs/kernels/simt.md
#pragma once

#include <cuda_pipeline.h>

#include "cuda/attn/row_tile.h"
#include "cuda/attn/softmax.cuh"
#include "cuda/attn/store.cuh"
#include "cuda/simt/config_simt.h"

namespace dlattn::cuda {
namespace prefill_simt {

// Where the rows of a tile of keys lie, in elements from the tensor's base.
template <bool kPlain>
struct KeyRows {
  const float* addresses;  // paged: each row's is an int64 in the padding behind the row; null: first + row * stride
  int64_t first, stride;
  int row_floats;

  __device__ __forceinline__ bool evenly_spaced() const { return kPlain || addresses == nullptr; }
  __device__ __forceinline__ int64_t operator()(int row) const {
    if (evenly_spaced()) return first + row * stride;
    return *reinterpret_cast<const int64_t*>(addresses + row * row_floats);
  }
};

// Where the rows of a tile of queries lie.
template <typename Offset>
struct QueryRows {
  static constexpr int64_t stride = 0;
  Offset offset;

  __device__ __forceinline__ bool evenly_spaced() const { return false; }
  __device__ __forceinline__ int64_t operator()(int row) const { return offset(row); }
};

// Copies rows of a tensor into shared memory as float32, kStride floats apart. offset(row): elements from base. Rows at and
// past `count` become zero.
// kFlip: the two 64-byte halves of 128 bytes change places in odd rows, so that a warp can read two rows at a time.
template <class Config, int kRows, int kStride, bool kFlip, typename RowOffset>
__device__ __forceinline__ void copy_tile(const void* base, DType dtype, bool aligned, int dim, int count,
                                          const RowOffset& offset, float* smem) {
  constexpr int kChunks = Config::kHeadDim / 4, kStep = Config::kThreads / kChunks;
  const int chunk = static_cast<int>(threadIdx.x) % kChunks, first = static_cast<int>(threadIdx.x) / kChunks;
  const int column = 4 * chunk;
  if (column >= dim) return;
  const auto place = [&](int row) {
    return reinterpret_cast<float4*>(smem + row * kStride + (kFlip ? column ^ ((row & 1) * 16) : column));
  };
  if (count < kRows) {
#pragma unroll 1
    for (int row = first; row < kRows; row += kStep) {
      if (row >= count) *place(row) = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
  }
  if (Config::kPlain || (aligned && dtype == DType::kFloat32)) {
    const float* from = static_cast<const float*>(base) + column;
    if (offset.evenly_spaced()) {
      from += offset(first);
      const int64_t step = kStep * offset.stride;
#pragma unroll
      for (int i = 0; i < kRows / kStep; ++i, from += step) {
        if (first + i * kStep < count) __pipeline_memcpy_async(place(first + i * kStep), from, 16);
      }
    } else {
#pragma unroll 2
      for (int row = first; row < count; row += kStep) __pipeline_memcpy_async(place(row), from + offset(row), 16);
    }
  } else if (aligned) {
    const uint16_t* from = static_cast<const uint16_t*>(base) + column;
    const bool half = dtype == DType::kFloat16;
#pragma unroll 4
    for (int row = first; row < count; row += kStep) {
      const uint2 words = *reinterpret_cast<const uint2*>(from + offset(row));
      const float2 low = half ? unpack<__half>(words.x) : unpack<__nv_bfloat16>(words.x);
      const float2 high = half ? unpack<__half>(words.y) : unpack<__nv_bfloat16>(words.y);
      *place(row) = make_float4(low.x, low.y, high.x, high.y);
    }
  } else {
#pragma unroll 1
    for (int row = first; row < count; row += kStep) {
      const int64_t at = offset(row) + column;
      float x[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] = column + i < dim ? load_float(base, dtype, at + i) : 0.0f;
      *place(row) = make_float4(x[0], x[1], x[2], x[3]);
    }
  }
}

__device__ __forceinline__ void read4(const float* smem, float (&x)[4]) {
  const float4 words = *reinterpret_cast<const float4*>(smem);
  x[0] = words.x;
  x[1] = words.y;
  x[2] = words.z;
  x[3] = words.w;
}

template <int kWidth>
__device__ __forceinline__ float max_across(float x) {
#pragma unroll
  for (int lanes = kWidth / 2; lanes > 0; lanes /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, lanes));
  return x;
}

template <int kWidth>
__device__ __forceinline__ float sum_across(float x) {
#pragma unroll
  for (int lanes = kWidth / 2; lanes > 0; lanes /= 2) x += __shfl_xor_sync(0xffffffffu, x, lanes);
  return x;
}

// One kernel instance: what a thread block keeps, and its steps in the order in which the kernel calls them.
template <class Config>
struct Block {
  static constexpr int kTileQ = Config::kTileQ, kTileKV = Config::kTileKV, kHeadDim = Config::kHeadDim;
  static constexpr int kStrideK = kHeadDim + 4;
  static constexpr int kCopyStep = Config::kThreads / (kHeadDim / 4);  // rows that are copied side by side
  static_assert(kHeadDim % 64 == 0 && kTileQ % kCopyStep == 0 && kTileKV % kCopyStep == 0, "copies in whole steps");
  static_assert(kTileKV <= Config::kThreads, "a thread looks up the page of one key");
  static_assert(Config::kSharedBytes * Config::kMinBlocks <= (228 - Config::kMinBlocks) * 1024,
                "blocks of a Hopper SM");
  static constexpr int kRows = Config::kRowsPerThread, kKeys = Config::kKeysPerThread;
  static constexpr int kColumns = Config::kColumnsPerThread, kVectors = kColumns / 4;
  const AttentionProblem& p;
  const Sequence sequence;
  const int64_t kv_head, first_row;
  const int num_rows;  // of this tile
  const int tx, ty;    // rows ty + 8 i; keys tx + 16 j; columns 4 tx + 64 n + 0..3
  // smem_k: rows are padded by 16 bytes, so that reads of a column do not collide; paged keys have their addresses there.
  float *smem_q, *smem_k, *smem_v, *smem_p;
  float row_max[kRows], row_sum[kRows];  // row_sum: of this thread's keys
  float acc[kRows][kColumns];
  int64_t all_visible_begin, all_visible_end;  // every row sees the keys between

  __device__ __forceinline__ Block(const AttentionProblem& problem, const RowTile& tile, int64_t head, float* smem)
      : p(problem),
        sequence(problem, tile.batch),
        kv_head(head),
        first_row(tile.first_row),
        num_rows(static_cast<int>(
            min(static_cast<int64_t>(kTileQ), sequence.len_q * problem.heads_per_kv_head - tile.first_row))),
        tx(static_cast<int>(threadIdx.x) % Config::kThreadsX),
        ty(static_cast<int>(threadIdx.x) / Config::kThreadsX),
        smem_q(smem),
        smem_k(smem_q + kTileQ * kHeadDim),
        smem_v(smem_k + kTileKV * kStrideK),
        smem_p(smem_v + kTileKV * kHeadDim) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      row_max[i] = -INFINITY;
      row_sum[i] = 0.0f;
#pragma unroll
      for (int d = 0; d < kColumns; ++d) acc[i][d] = 0.0f;
    }
  }

  __device__ __forceinline__ bool paged() const { return !Config::kPlain && p.paged; }
  __device__ __forceinline__ int row_of(int i) const { return ty + Config::kThreadsY * i; }
  __device__ __forceinline__ int64_t query_of(int row) const { return p.heads_per_kv_head_div.div(first_row + row); }
  __device__ __forceinline__ int64_t head_of(int row) const {
    return kv_head * p.heads_per_kv_head + (first_row + row - query_of(row) * p.heads_per_kv_head);
  }
  __device__ __forceinline__ KeyRange keys() const {
    return sequence.visible_keys(p, query_of(0), query_of(num_rows - 1));
  }

  __device__ __forceinline__ void copy_q() const {
    const auto offset = [&](int row) {
      return sequence.q_base + query_of(row) * p.q_stride_seq + head_of(row) * p.q_stride_head;
    };
    copy_tile<Config, kTileQ, kHeadDim, true>(p.q, p.dtype, p.q_aligned, p.head_dim, num_rows,
                                              QueryRows<decltype(offset)>{offset}, smem_q);
  }
  // Where it lies, by the threads that copied it.
  __device__ __forceinline__ void scale_q() const {
    constexpr int kChunks = kHeadDim / 4, kStep = Config::kThreads / kChunks;
    const int column = static_cast<int>(threadIdx.x) % kChunks * 4;
    if (column >= p.head_dim) return;
#pragma unroll 4
    for (int row = static_cast<int>(threadIdx.x) / kChunks; row < kTileQ; row += kStep) {
      auto* at = reinterpret_cast<float4*>(smem_q + row * kHeadDim + (column ^ ((row & 1) * 16)));
      const float4 x = *at;
      *at = make_float4(x.x * p.scale, x.y * p.scale, x.z * p.scale, x.w * p.scale);
    }
  }
  __device__ __forceinline__ void copy_k(int64_t begin, int count) const {
    const KeyRows<Config::kPlain> rows = {!paged() ? nullptr : smem_k + kHeadDim,
                                          sequence.k_base + begin * p.k_stride_seq + kv_head * p.k_stride_head,
                                          p.k_stride_seq, kStrideK};
    copy_tile<Config, kTileKV, kStrideK, false>(p.k, p.dtype, p.k_aligned, p.head_dim, count, rows, smem_k);
  }
  __device__ __forceinline__ void copy_v(int64_t begin, int count) const {
    const KeyRows<Config::kPlain> rows = {!paged() ? nullptr : smem_k + kHeadDim + 2,
                                          sequence.v_base + begin * p.v_stride_seq + kv_head * p.v_stride_head,
                                          p.v_stride_seq, kStrideK};
    copy_tile<Config, kTileKV, kHeadDim, false>(p.v, p.dtype, p.v_aligned, p.head_dim_v, count, rows, smem_v);
  }
  // Paged: a thread looks up one key of the next tile, a phase before its row is copied.
  __device__ __forceinline__ int64_t* address_of(int which) const {
    return reinterpret_cast<int64_t*>(smem_k + threadIdx.x * kStrideK + kHeadDim) + which;
  }
  __device__ __forceinline__ void find_k(int64_t begin, int64_t end) const {
    const int64_t key = begin + threadIdx.x;
    if (!paged() || threadIdx.x >= kTileKV || key >= end) return;
    const PagedKey at(p, sequence.batch, key);
    *address_of(0) = at.page * p.k_stride_batch + at.row * p.k_stride_seq + kv_head * p.k_stride_head;
  }
  __device__ __forceinline__ void find_v(int64_t begin, int64_t end) const {
    const int64_t key = begin + threadIdx.x;
    if (!paged() || threadIdx.x >= kTileKV || key >= end) return;
    const PagedKey at(p, sequence.batch, key);
    *address_of(1) = at.page * p.v_stride_batch + at.row * p.v_stride_seq + kv_head * p.v_stride_head;
  }

  // Scores of rows ty + 8 i and keys tx + 16 j. The scale is in q.
  __device__ __forceinline__ void compute_scores(float (&scores)[kRows][kKeys]) const {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int j = 0; j < kKeys; ++j) scores[i][j] = 0.0f;
    }
    // In the odd rows of q, columns 0..15 and 16..31 of every 32 have changed places.
    int flip = (ty & 1) * 16;
    const float* q_row = smem_q + ty * kHeadDim;
    const float* k_row = smem_k + tx * kStrideK;
    int column = 0;
#pragma unroll 1
    for (; column + 16 <= p.head_dim; column += 16) {
#pragma unroll
      for (int c = 0; c < 16; c += 4) add_products(q_row + column + c + flip, k_row + column + c, scores);
      flip = -flip;
    }
#pragma unroll 1
    for (; column < p.head_dim; column += 4) add_products(q_row + column + flip, k_row + column, scores);
  }

  // Four columns more.
  __device__ __forceinline__ void add_products(const float* q_at, const float* k_at,
                                               float (&scores)[kRows][kKeys]) const {
    float k[kKeys][4];
#pragma unroll
    for (int j = 0; j < kKeys; ++j) read4(k_at + j * Config::kThreadsX * kStrideK, k[j]);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      float q[4];
      read4(q_at + i * Config::kThreadsY * kHeadDim, q);
#pragma unroll
      for (int c = 0; c < 4; ++c) {
#pragma unroll
        for (int n = 0; n < kKeys; ++n) {
          const int j = c % 2 == 0 ? n : kKeys - 1 - n;  // to and fro: neighbours share an operand
          scores[i][j] = fmaf(q[c], k[j][c], scores[i][j]);
        }
      }
    }
  }

  // Of row ty + 8 i. The two rows of a warp, ty and ty + 1, are 16 banks apart.
  __device__ __forceinline__ float* probability(int i, int key) const {
    constexpr int kFlip = kTileKV >= 32 ? 16 : 0;
    return smem_p + row_of(i) * kTileKV + (key ^ ((ty & 1) * kFlip));
  }

  // Hide what a row may not see; add the options. In shared memory and not unrolled: the code is large, the case rare.
  __device__ __forceinline__ void apply_rules(int64_t begin, int count, bool options) const {
#pragma unroll 1
    for (int i = 0; i < kRows; ++i) {
      const int row = row_of(i);
      const int64_t query = query_of(row), head = head_of(row);
      const int64_t first = sequence.key_begin(p, query) - begin, last = sequence.key_end(p, query) - begin;
#pragma unroll 1
      for (int j = 0; j < kKeys; ++j) {
        const int key = tx + Config::kThreadsX * j;
        float* at = probability(i, key);
        float score = *at;
        if (key < first || key >= last || key >= count || row >= num_rows) {
          score = -INFINITY;
        } else if (options) {
          score = apply_score_options(p, sequence, head, query, begin + key, score);
        }
        *at = score;
      }
    }
  }

  __device__ __forceinline__ void put(const float (&scores)[kRows][kKeys]) const {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int j = 0; j < kKeys; ++j) *probability(i, tx + Config::kThreadsX * j) = scores[i][j];
    }
  }

  // Leaves the probabilities of the tile in smem_p; rescales acc and row_sum.
  __device__ __forceinline__ void softmax(float (&scores)[kRows][kKeys], int64_t begin, int count) {
    const bool options = !Config::kPlain && p.has_score_options();
    if (options || begin < all_visible_begin || begin + kTileKV > all_visible_end) {
      put(scores);
      apply_rules(begin, count, options);
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
#pragma unroll
        for (int j = 0; j < kKeys; ++j) scores[i][j] = *probability(i, tx + Config::kThreadsX * j);
      }
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      float largest = scores[i][0];
#pragma unroll
      for (int j = 1; j < kKeys; ++j) largest = fmaxf(largest, scores[i][j]);
      const Rescale step = rescale(row_max[i], max_across<Config::kThreadsX>(largest));
      row_max[i] = step.row_max;
      float sum = 0.0f;
#pragma unroll
      for (int j = 0; j < kKeys; ++j) {
        scores[i][j] = exp_of(scores[i][j] - step.subtract);
        sum += scores[i][j];
      }
      row_sum[i] = fmaf(row_sum[i], step.factor, sum);
#pragma unroll
      for (int d = 0; d < kColumns; ++d) acc[i][d] *= step.factor;
    }
    put(scores);
  }

  // acc += p v. The rows of p that a thread reads were written by its own half warp.
  __device__ __forceinline__ void accumulate_values() {
#pragma unroll 2
    for (int key = 0; key < kTileKV; key += 4) {
      float weights[kRows][4];
#pragma unroll
      for (int i = 0; i < kRows; ++i) read4(probability(i, key), weights[i]);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float v[kVectors][4];
#pragma unroll
        for (int n = 0; n < kVectors; ++n) read4(smem_v + (key + j) * kHeadDim + 64 * n + 4 * tx, v[n]);
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
#pragma unroll
          for (int n = 0; n < kColumns; ++n) {
            const int d = (j * kRows + i) % 2 == 0 ? n : kColumns - 1 - n;
            acc[i][d] = fmaf(weights[i][j], v[d / 4][d % 4], acc[i][d]);
          }
        }
      }
    }
  }

  __device__ __forceinline__ void store_out() {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const float sum = sum_across<Config::kThreadsX>(row_sum[i]);
      const int row = row_of(i);
      if (row >= num_rows) continue;
      const int64_t query = query_of(row), head = head_of(row);
      const RowResult result(p.sinks, head, row_max[i], sum);
      if (p.lse != nullptr && tx == 0) p.lse[sequence.lse_base + head * p.lse_stride_head + query] = result.lse;
      const int64_t at = sequence.out_base + query * p.out_stride_seq + head * p.out_stride_head;
#pragma unroll
      for (int n = 0; n < kVectors; ++n) {
        const int column = 64 * n + 4 * tx;
        float4 x;
        x.x = result.value(acc[i][4 * n]);
        x.y = result.value(acc[i][4 * n + 1]);
        x.z = result.value(acc[i][4 * n + 2]);
        x.w = result.value(acc[i][4 * n + 3]);
        store_columns(p, at, column, x);
      }
    }
  }

  __device__ __forceinline__ void run() {
    const KeyRange range = keys();
    const auto count_at = [&](int64_t begin) {
      return static_cast<int>(min(static_cast<int64_t>(kTileKV), max(range.end - begin, int64_t{0})));
    };
    all_visible_begin = sequence.key_begin(p, query_of(num_rows - 1));
    all_visible_end = num_rows == kTileQ ? sequence.key_end(p, query_of(0)) : 0;
    copy_q();
    find_k(range.begin, range.end);
    find_v(range.begin, range.end);
    if (paged()) __syncthreads();
    copy_k(range.begin, count_at(range.begin));
    __pipeline_commit();
    __pipeline_wait_prior(0);
    scale_q();
    for (int64_t begin = range.begin; begin < range.end; begin += kTileKV) {
      const int64_t next = begin + kTileKV;
      __pipeline_wait_prior(0);
      __syncthreads();  // k is there, and where v lies; nobody reads v of the tile before
      const int count = count_at(begin);
      copy_v(begin, count);
      __pipeline_commit();
      find_k(next, range.end);
      float scores[kRows][kKeys];
      compute_scores(scores);
      softmax(scores, begin, count);
      __pipeline_wait_prior(0);
      __syncthreads();  // v is there, and where k lies; nobody reads k any more
      copy_k(next, count_at(next));
      __pipeline_commit();
      find_v(next, range.end);
      accumulate_values();
    }
    store_out();
  }
};

// Causal: the longest tiles of all heads first, so that no long one starts last. Else the tiles of a kv head are neighbours,
// which share its keys in the L2.
struct WorkItem {
  int64_t slot, kv_head;
};
__device__ __forceinline__ WorkItem find_work(const AttentionProblem& p, const RowTiles& tiles, int64_t item) {
  if (p.window_right != 0 || tiles.ragged) {
    const int64_t kv_head = item / tiles.num_slots;
    return {item - kv_head * tiles.num_slots, kv_head};
  }
  const int64_t outer = p.kv_heads_div.div(item);  // rank of the tile in its sequence * batch_size + batch
  const int64_t rank = outer / p.batch_size;
  const int64_t batch = outer - rank * p.batch_size;
  return {batch * tiles.per_sequence.divisor + rank, item - outer * p.num_kv_heads};
}

template <class Config>
__global__ __launch_bounds__(Config::kThreads, Config::kMinBlocks) void attention_prefill_simt(
    const __grid_constant__ AttentionProblem problem, const __grid_constant__ RowTiles tiles, int64_t num_items) {
  extern __shared__ float4 smem[];
  for (int64_t item = blockIdx.x; item < num_items; item += gridDim.x) {
    const WorkItem work = find_work(problem, tiles, item);
    const RowTile tile = tiles.find(work.slot);
    if (tile.first_row < 0) continue;
    Block<Config> block(problem, tile, work.kv_head, reinterpret_cast<float*>(smem));
    block.run();
    __syncthreads();  // the next item writes q
  }
}

}  // namespace prefill_simt
}  // namespace dlattn::cuda
