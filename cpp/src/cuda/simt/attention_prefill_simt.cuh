// attention_prefill_simt -- forward attention without tensor cores, in float32: any GPU, dtype, head_dim <= 256, stride, option
//   computes  out = softmax(scale q k^T + mask) v;  lse = natural log of the row sum (optional)
//   work      one (row tile, kv head) item; the rows of all heads that share the kv head share the tile; causal: the longest
//             tiles of all heads first (attn/work_order.h)
//   tile      kTileQ rows x kTileKV keys; a thread holds rows/kThreadsY x keys/16 scores and rows/kThreadsY x head_dim/16 results
//   roles     kThreadsY x 16 threads; a row belongs to the 16 lanes of equal parity in a warp, so its softmax needs shuffles only.
//             Where there are 256 threads, one half copies k, the other v: one warp of a scheduler computes meanwhile
//   smem      as float32: q, scaled and transposed; probabilities; two parts of k or v. A part is kPartColumns columns of a tile
//             of k or kPartKeys rows of v. The 16-byte chunks of a row of k are permuted, and 64-byte halves of p change
//             places in every other group of rows: no bank conflicts. Then the offsets of paged rows (config_simt.h)
//   sync      while a part is used the next one is copied over the one before (cp.async from sm_80 on, if float32 and aligned);
//             one block barrier a part, paged one more for each tile of k and of v
//   assumes   nothing of alignment: copies of four elements where rows are 16-byte aligned, else element by element
//   elsewhere few rows: attention_decode_simt.cuh
//   checked   tests_cpp/ops/test_attention_cuda.cpp, test_ragged_cuda.cpp; speed: docs/kernels/simt.md
#pragma once

#include <cuda_pipeline.h>

#include "cuda/attn/row_tile.h"
#include "cuda/attn/softmax.cuh"
#include "cuda/attn/store.cuh"
#include "cuda/attn/work_order.h"
#include "cuda/simt/config_simt.h"

namespace dlattn::cuda {
namespace prefill_simt {

// Four elements as float32; only the first `count` exist, the others become zero.
__device__ __forceinline__ float4 load4(const void* base, DType dtype, int64_t at, int count) {
  float x[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) x[i] = i < count ? load_float(base, dtype, at + i) : 0.0f;
  return make_float4(x[0], x[1], x[2], x[3]);
}
__device__ __forceinline__ float4 convert4(uint2 words, bool half) {
  const float2 low = half ? unpack<__half>(words.x) : unpack<__nv_bfloat16>(words.x);
  const float2 high = half ? unpack<__half>(words.y) : unpack<__nv_bfloat16>(words.y);
  return make_float4(low.x, low.y, high.x, high.y);
}

// In a part of k, chunk c of a row (four columns) lies where chunk c ^ flip_of(row) would, so that the same column of 8 rows is
// in 8 groups of 4 banks.
__device__ __forceinline__ int flip_of(int row) { return row % 8; }

// How kCopyThreads threads copy kRows rows of kColumns: which chunk of which rows each moves.
template <class Config, int kRows, int kColumns, bool kFlip>
struct PartCopy {
  static constexpr int kChunks = kColumns / 4, kStep = Config::kCopyThreads / kChunks, kCopies = kRows / kStep;
  static_assert(kCopies * kStep == kRows && (!kFlip || kStep % 8 == 0),
                "whole steps, one flip for all rows of a thread");

  const int row, column;  // the first
  const int place;        // in the part

  __device__ __forceinline__ PartCopy()
      : row(static_cast<int>(threadIdx.x) % Config::kCopyThreads / kChunks),
        column(static_cast<int>(threadIdx.x) % kChunks * 4),
        place(row * kColumns + (kFlip ? column ^ 4 * flip_of(row) : column)) {}

  // Rows at and past `count` become zero; columns at and past `dim` are left alone.
  // first: where the thread's first chunk lies, in elements from base. offsets: of each row of a paged cache, to be added to
  // it; null: rows are `stride` apart.
  __device__ __forceinline__ void copy(const void* base, DType dtype, bool aligned, int dim, int count, int64_t first,
                                       const int64_t* offsets, int64_t stride, float* smem) const {
    if (column >= dim) return;
    const int64_t step = kStep * stride;
    const auto to = [&](int i) { return reinterpret_cast<float4*>(smem + place + i * kStep * kColumns); };
    const auto is_row = [&](int i) { return row + i * kStep < count; };
    const auto from = [&](int i) { return first + (offsets == nullptr ? i * step : offsets[row + i * kStep]); };
    if (aligned && Config::kFloat32) {
      const float* data = static_cast<const float*>(base);
      if (offsets == nullptr && count >= kRows) {
        data += first;
#pragma unroll
        for (int i = 0; i < kCopies; ++i, data += step) __pipeline_memcpy_async(to(i), data, 16);
        return;
      }
#pragma unroll 2
      for (int i = 0; i < kCopies; ++i) {
        if (is_row(i)) {
          __pipeline_memcpy_async(to(i), data + from(i), 16);
        } else {
          *to(i) = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
      }
    } else if (aligned) {
      constexpr int kBatch = kCopies < 4 ? kCopies : 4;  // loads at a time
#pragma unroll 1
      for (int i = 0; i < kCopies; i += kBatch) {
        uint2 words[kBatch];
#pragma unroll
        for (int n = 0; n < kBatch; ++n) {
          words[n] = make_uint2(0, 0);
          const auto* data = static_cast<const uint16_t*>(base);
          if (is_row(i + n)) words[n] = *reinterpret_cast<const uint2*>(data + from(i + n));
        }
#pragma unroll
        for (int n = 0; n < kBatch; ++n) *to(i + n) = convert4(words[n], dtype == DType::kFloat16);
      }
    } else {
#pragma unroll 1
      for (int i = 0; i < kCopies; ++i) {
        float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (is_row(i)) x = load4(base, dtype, from(i), dim - column);
        *to(i) = x;
      }
    }
  }
};

// 2, 4 or 8 neighbours.
template <int kCount>
__device__ __forceinline__ void read_row(const float* smem, float (&x)[kCount]) {
  if constexpr (kCount == 2) {
    const float2 words = *reinterpret_cast<const float2*>(smem);
    x[0] = words.x;
    x[1] = words.y;
  } else {
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {
      const float4 words = *reinterpret_cast<const float4*>(smem + i);
      x[i] = words.x;
      x[i + 1] = words.y;
      x[i + 2] = words.z;
      x[i + 3] = words.w;
    }
  }
}

// Over the 16 lanes of a row, which are every other one.
__device__ __forceinline__ float max_of_row(float x) {
#pragma unroll
  for (int lanes = 16; lanes > 1; lanes /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, lanes));
  return x;
}
__device__ __forceinline__ float sum_of_row(float x) {
#pragma unroll
  for (int lanes = 16; lanes > 1; lanes /= 2) x += __shfl_xor_sync(0xffffffffu, x, lanes);
  return x;
}

// One kernel instance: what a thread block keeps, and its steps in the order in which the kernel calls them.
template <class Config>
struct Block {
  static constexpr int kTileQ = Config::kTileQ, kTileKV = Config::kTileKV, kHeadDim = Config::kHeadDim;
  static constexpr int kPartColumns = Config::kPartColumns, kPartKeys = Config::kPartKeys;
  static constexpr int kPartFloats = Config::kPartFloats, kParts = Config::kParts;
  static constexpr bool kSplitCopies = Config::kThreads > Config::kCopyThreads;  // half of the threads copy k, half v
  static_assert(kHeadDim % 64 == 0 && kTileKV % 32 == 0 && kPartColumns % 32 == 0, "reads without bank conflicts");
  static_assert(kTileKV <= Config::kThreads, "a thread looks up the page of one key");
  static_assert(Config::kSharedBytes * Config::kMinBlocks <= (228 - Config::kMinBlocks) * 1024,
                "blocks of a Hopper SM");
  static constexpr int kRows = Config::kRowsPerThread, kKeys = Config::kKeysPerThread;
  static constexpr int kColumns = Config::kColumnsPerThread, kVectors = kColumns / 4;
  const AttentionProblem& p;
  const Sequence sequence;
  const int64_t kv_head, first_row;
  const int num_rows;  // of this tile
  const int tx, ty;    // rows kRows ty + i; keys tx + 16 j; columns 4 tx + 64 n + 0..3
  float *smem_q, *smem_p, *smem_parts;
  int64_t* smem_offsets;  // paged: of the rows that are being copied
  const PartCopy<Config, kTileKV, kPartColumns, true> copier_k;
  const PartCopy<Config, kPartKeys, kHeadDim, false> copier_v;
  // Where this thread's chunk of the next tile of k, of the next part of v lies. Paged: in a row.
  int64_t k_offset, v_offset;
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
        tx(static_cast<int>(threadIdx.x) % 32 / 2),
        ty(static_cast<int>(threadIdx.x) / 32 * 2 + static_cast<int>(threadIdx.x) % 2),
        smem_q(smem),
        smem_p(smem_q + kTileQ * kHeadDim),
        smem_parts(smem_p + kTileQ * kTileKV),
        smem_offsets(reinterpret_cast<int64_t*>(smem_parts + 2 * kPartFloats)),
        k_offset(kv_head * problem.k_stride_head + copier_k.column),
        v_offset(kv_head * problem.v_stride_head + copier_v.column) {
    all_visible_begin = sequence.key_begin(p, query_of(num_rows - 1));
    all_visible_end = sequence.key_end(p, query_of(0));
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      row_max[i] = -INFINITY;
      row_sum[i] = 0.0f;
#pragma unroll
      for (int d = 0; d < kColumns; ++d) acc[i][d] = 0.0f;
    }
  }

  __device__ __forceinline__ DType dtype() const { return Config::kFloat32 ? DType::kFloat32 : p.dtype; }
  __device__ __forceinline__ int row_of(int i) const { return kRows * ty + i; }
  __device__ __forceinline__ int64_t query_of(int row) const { return p.heads_per_kv_head_div.div(first_row + row); }
  __device__ __forceinline__ int64_t head_of(int row) const {
    return kv_head * p.heads_per_kv_head + (first_row + row - query_of(row) * p.heads_per_kv_head);
  }
  __device__ __forceinline__ KeyRange keys() const {
    return sequence.visible_keys(p, query_of(0), query_of(num_rows - 1));
  }

  // smem_q[column][row], scaled. A warp's lanes have different rows: no bank conflicts from 32 rows on; a row's sectors
  // come from the L1.
  __device__ __forceinline__ void copy_q() const {
    constexpr int kStep = Config::kThreads / kTileQ;  // chunks side by side
    const int row = static_cast<int>(threadIdx.x) % kTileQ;
    const int64_t at = sequence.q_base + query_of(row) * p.q_stride_seq + head_of(row) * p.q_stride_head;
#pragma unroll 4
    for (int column = static_cast<int>(threadIdx.x) / kTileQ * 4; column < p.head_dim; column += 4 * kStep) {
      float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      if (row < num_rows) {
        x = !p.q_aligned ? load4(p.q, dtype(), at + column, p.head_dim - column)
            : Config::kFloat32
                ? *reinterpret_cast<const float4*>(static_cast<const float*>(p.q) + at + column)
                : convert4(*reinterpret_cast<const uint2*>(static_cast<const uint16_t*>(p.q) + at + column),
                           dtype() == DType::kFloat16);
      }
      float* to = smem_q + column * kTileQ + row;
      to[0] = x.x * p.scale;
      to[kTileQ] = x.y * p.scale;
      to[2 * kTileQ] = x.z * p.scale;
      to[3 * kTileQ] = x.w * p.scale;
    }
  }

  __device__ __forceinline__ void find_first(int64_t begin) {
    if (p.paged) return;
    k_offset += sequence.k_base + (begin + copier_k.row) * p.k_stride_seq;
    v_offset += sequence.v_base + (begin + copier_v.row) * p.v_stride_seq;
  }
  // Paged: where the rows of a tile lie, by a thread each. They are used until the next call.
  __device__ __forceinline__ void look_up(int64_t begin, int count, int64_t stride_page, int64_t stride_row) const {
    if (static_cast<int>(threadIdx.x) < count) {
      const PagedKey at(p, sequence.batch, begin + threadIdx.x);
      smem_offsets[threadIdx.x] = at.page * stride_page + at.row * stride_row;
    }
    __syncthreads();
  }

  // Parts are copied in turns to the two places. `count`: keys of the tile.
  __device__ __forceinline__ float* place_of(int part) const { return smem_parts + part % 2 * kPartFloats; }
  __device__ __forceinline__ void copy_k(int part, int64_t begin, int count) {
    if (p.paged && part == 0) look_up(begin, count, p.k_stride_batch, p.k_stride_seq);
    const int column = part * kPartColumns;
    if (!kSplitCopies || threadIdx.x < Config::kCopyThreads) {
      copier_k.copy(p.k, dtype(), p.k_aligned, p.head_dim - column, count, k_offset + column,
                    p.paged ? smem_offsets : nullptr, p.k_stride_seq, place_of(part));
    }
    if (!p.paged && part == kParts - 1) k_offset += kTileKV * p.k_stride_seq;
    __pipeline_commit();
  }
  __device__ __forceinline__ void copy_v(int part, int64_t begin, int count) {
    if (p.paged && part == 0) look_up(begin, count, p.v_stride_batch, p.v_stride_seq);
    const int key = part * kPartKeys;
    if (!kSplitCopies || threadIdx.x >= Config::kCopyThreads) {
      copier_v.copy(p.v, dtype(), p.v_aligned, p.head_dim_v, count - key, v_offset,
                    p.paged ? smem_offsets + key : nullptr, p.v_stride_seq, place_of(kParts + part));
    }
    if (!p.paged) v_offset += kPartKeys * p.v_stride_seq;
    __pipeline_commit();
  }
  // The part that was copied last is there for all, and nobody uses the one before it any more.
  __device__ __forceinline__ void wait_for_part() const {
    __pipeline_wait_prior(0);
    __syncthreads();
  }

  // More columns of the scores of rows kRows ty + i and keys tx + 16 j. The scale is in q.
  __device__ __forceinline__ void add_scores(int part, float (&scores)[kRows][kKeys]) const {
    constexpr int kChunks = kPartColumns / 4;
    const float* k_row = place_of(part) + tx * kPartColumns;
    const float* q_at = smem_q + part * kPartColumns * kTileQ + kRows * ty;
    const int flip = flip_of(tx), chunks = min(kChunks, (p.head_dim - part * kPartColumns + 3) / 4);
#pragma unroll Config::kUnroll
    for (int chunk = 0; chunk < chunks; ++chunk, q_at += 4 * kTileQ) {
      add_products(q_at, k_row + (chunk ^ flip) * 4, scores);
    }
  }

  // Of four columns. Neighbouring multiply-adds share an operand (k, at a turn q) and take two neighbours of the others:
  // a register file of two banks delivers no more than that (docs/kernels/simt.md).
  __device__ __forceinline__ void add_products(const float* q_at, const float* k_at,
                                               float (&scores)[kRows][kKeys]) const {
    float q[4][kRows];
#pragma unroll
    for (int c = 0; c < 4; ++c) read_row(q_at + c * kTileQ, q[c]);
#pragma unroll
    for (int j = 0; j < kKeys; ++j) {
      float k[4];
      read_row(k_at + j * Config::kThreadsX * kPartColumns, k);
#pragma unroll
      for (int c = 0; c < 4; ++c) {
#pragma unroll
        for (int n = 0; n < kRows; ++n) {
          const int i = c % 2 == 0 ? n : kRows - 1 - n;
          scores[i][j] = fmaf(q[c][i], k[c], scores[i][j]);
        }
      }
    }
  }

  // Of row kRows ty + i. The two rows of a warp are 16 banks apart.
  __device__ __forceinline__ float* probability(int i, int key) const {
    return smem_p + row_of(i) * kTileKV + (key ^ ((ty & 1) * 16));
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
        if (key < first || key >= last || key >= count) {
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
    const bool options = p.has_score_options();
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
      const Rescale step = rescale(row_max[i], max_of_row(largest));
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

  // acc += p v. A row of p is read by the lanes that wrote it.
  __device__ __forceinline__ void add_values(int part, int count) {
    const int first = part * kPartKeys, keys = min(kPartKeys, count - first);
    const float* v_at = place_of(kParts + part) + 4 * tx;
#pragma unroll Config::kUnroll
    for (int key = 0; key < keys; key += 4, v_at += 4 * kHeadDim) add_products(probability(0, first + key), v_at);
  }

  // Of four keys, in the same order.
  __device__ __forceinline__ void add_products(const float* p_at, const float* v_at) {
    float v[4][kVectors][4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int n = 0; n < kVectors; ++n) read_row(v_at + j * kHeadDim + 64 * n, v[j][n]);
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      float weights[4];
      read_row(p_at + i * kTileKV, weights);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
#pragma unroll
        for (int n = 0; n < kColumns; ++n) {
          const int d = j % 2 == 0 ? n : kColumns - 1 - n;
          acc[i][d] = fmaf(weights[j], v[j][d / 4][d % 4], acc[i][d]);
        }
      }
    }
  }

  __device__ __forceinline__ void store_out() {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const float sum = sum_of_row(row_sum[i]);
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
    find_first(range.begin);
    copy_k(0, range.begin, count_at(range.begin));
    copy_q();
    for (int64_t begin = range.begin; begin < range.end; begin += kTileKV) {
      const int count = count_at(begin);
      float scores[kRows][kKeys];
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
#pragma unroll
        for (int j = 0; j < kKeys; ++j) scores[i][j] = 0.0f;
      }
#pragma unroll 1
      for (int part = 0; part < kParts; ++part) {
        wait_for_part();
        if (part + 1 < kParts) {
          copy_k(part + 1, begin, count);
        } else {
          copy_v(0, begin, count);
        }
        add_scores(part, scores);
      }
      softmax(scores, begin, count);
#pragma unroll 1
      for (int part = 0; part < kParts; ++part) {
        wait_for_part();
        if (part + 1 < kParts) {
          copy_v(part + 1, begin, count);
        } else {
          copy_k(0, begin + kTileKV, count_at(begin + kTileKV));
        }
        add_values(part, count);
      }
    }
    store_out();
  }
};

template <class Config>
__global__ __launch_bounds__(Config::kThreads, Config::kMinBlocks) void attention_prefill_simt(
    const __grid_constant__ AttentionProblem problem, const __grid_constant__ RowTiles tiles,
    const __grid_constant__ WorkOrder order, int64_t num_items) {
  extern __shared__ float4 smem[];
  for (int64_t item = blockIdx.x; item < num_items; item += gridDim.x) {
    const WorkOrder::Item work = order.find(item);
    const RowTile tile = tiles.find(work.slot);
    if (tile.first_row < 0) continue;
    Block<Config> block(problem, tile, work.kv_head, reinterpret_cast<float*>(smem));
    block.run();
  }
}

}  // namespace prefill_simt
}  // namespace dlattn::cuda
