// attention_prefill_mma -- forward attention with the tensor cores of any GPU from sm_80 on: float16 and bfloat16
//   computes  out = softmax(scale q k^T + mask) v;  lse = natural log of the row sum (optional); or the partial sums of a part
//             of the keys (attn/partial.h)
//   work      one (part of the keys, row tile, kv head) item; the rows of all heads that share the kv head share the tile
//             (attn/work_order.h)
//   tile      kTileQ rows x kTileKV keys; a warp has kWarpRows rows (two MMA tiles of 16 share what is read of k and v)
//   roles     all warps copy and compute; a warp skips the tiles that none of its rows sees
//   softmax   relative to a reference of each row, which stays where it is while all exponentials are small: no maximum and no
//             rescaling in the loop. Large ones move it; if some or the reference were too large the item is done again,
//             carefully: relative to the maximum, and what is subtracted is exact
//   overlap   the exponentials of 16 keys are computed between the products p v of the 16 keys before; the copies of the next
//             tile are issued between the products q k^T
//   registers scores and results in float32, probabilities in 16 bit: the scores' fragments are the next product's operand.
//             Close to the limit: what the loop does not need waits in shared memory; what is left holds fragments of q
//   smem      q, kStages tiles of k and of v, swizzled rows (swizzled_rows.h). What each row sees, where it lies. In the end
//             q's place holds the results on their way out
//   sync      cp.async; one block barrier a tile
//   assumes   head_dim, head_dim_v multiples of 8, rows of q, k, v 16-byte aligned; without kOptions: no softcap, mask, ALiBi,
//             and scale > 0
//   elsewhere few rows: attention_decode_mma.cuh; parts are merged in any/combine_splits.cu
//   checked   tests_cpp/ops/test_attention_cuda.cpp, test_ragged_cuda.cpp; speed: docs/kernels/mma.md
#pragma once

#include "cuda/attn/partial.h"
#include "cuda/attn/softmax.cuh"
#include "cuda/mma/key_tiles.cuh"
#include "cuda/ptx/mma_sync.cuh"
#include "cuda/ptx/special.cuh"

namespace dlattn::cuda {
namespace prefill_mma {

template <typename T, class Config>
struct SharedStorage {
  alignas(128) T q[Config::kTileQ][Config::kHeadDim];  // SwizzledRows
  KeyStorage<T, Config> keys;
  WorkItem item;
  int failed;                       // some exponentials or references were too large
  int2 visible[Config::kTileQ];     // keys begin .. end of a row, counted from the part's first
  int4 bounds[Config::kWarps];      // what some and what all rows of a warp see: begin, end, begin, end
  const T* q_row[Config::kTileQ];   // null: there is no such row
  int64_t out_row[Config::kTileQ];  // in elements
  // Of a row. reference: as an exponent of 2, if careful as a score; -inf: no key yet. subtract: from the exponents of 2.
  float reference[Config::kTileQ], subtract[Config::kTileQ];
  bool careful, move[Config::kWarps];  // move: whether a warp's references move in its next tile
  float2 state[Config::kTileQ];        // in the end: factor and sum of a row
};

template <typename T, class Config, bool kOptions>
struct Block {
  using Storage = SharedStorage<T, Config>;
  using Layout = CopyLayout<Config>;
  using Rows = SwizzledRows<Config::kHeadDim>;
  static constexpr int kHeadDim = Config::kHeadDim, kTileQ = Config::kTileQ, kTileKV = Config::kTileKV;
  static constexpr int kStages = Config::kStages, kRowBytes = Layout::kRowBytes;
  static constexpr int kRowTiles = Config::kWarpRows / 16, kRows = 2 * kRowTiles;  // of a warp; of a thread
  static constexpr int kKeyTiles = kTileKV / 8, kDimTiles = kHeadDim / 8, kSteps = kHeadDim / 16;
  static constexpr int kKept = Config::kKept;
  // Of a row's exponentials in a thread and tile: from when on the reference moves; what float16 holds for certain.
  static constexpr float kLargeSum = 256.0f, kLargestSum = 32768.0f;
  static constexpr float kLargestReference = 1024.0f;  // beyond, its rounding would show
  static_assert(kTileQ <= Config::kThreads && Config::kWarpRows <= 32, "a thread looks up a row");
  static_assert(kStages == 2, "a tile is copied while another one is used");
  static_assert(kTileKV % 16 == 0 && kKept <= kSteps);
  using Scores = float[kRowTiles][kKeyTiles][4];

  const AttentionProblem& p;
  Storage& smem;
  const int lane, warp;
  float scale_log2;  // what a score is multiplied by to be an exponent of 2
  float acc[kRowTiles][kDimTiles][4];
  float row_sum[kRows];  // of this thread's keys
  // Of q, the first steps' fragments; the others are read for each tile.
  uint32_t kept[kKept > 0 ? kKept : 1][kRowTiles][4];

  __device__ __forceinline__ Block(const AttentionProblem& problem, Storage& storage)
      : p(problem),
        smem(storage),
        lane(static_cast<int>(threadIdx.x) & 31),
        warp(static_cast<int>(threadIdx.x) / 32),
        scale_log2(kOptions ? kLog2E : problem.scale * kLog2E) {}

  static __device__ __forceinline__ void clear(Scores& scores) {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) scores[m][n][e] = 0.0f;
      }
    }
  }

  // A thread's rows: the first one, read again each time (kept in a register it would be one too many), and how far behind it
  // row i lies: i / 2 is the MMA tile, i % 2 its half.
  __device__ __forceinline__ int first_row() const { return warp * Config::kWarpRows + ptx::lane_id() / 4; }
  static __device__ __forceinline__ int step_to(int i) { return i / 2 * 16 + i % 2 * 8; }

  __device__ __forceinline__ void find_rows(const WorkItem& item) const {
    const int row = static_cast<int>(threadIdx.x);
    if (row >= kTileQ) return;
    smem.reference[row] = row < item.num_rows ? -INFINITY : 0.0f;
    smem.subtract[row] = 0.0f;
    smem.visible[row] = make_int2(0, 0);
    smem.q_row[row] = nullptr;
    if (row >= item.num_rows) return;
    const Sequence& s = item.sequence;
    const int64_t query = item.query_of(p, row), head = item.head_of(p, row, query);
    const auto in_part = [&](int64_t key) {
      return static_cast<int>(min(max(key - item.keys.begin, int64_t{0}), item.keys.end - item.keys.begin));
    };
    smem.visible[row] = make_int2(in_part(s.key_begin(p, query)), in_part(s.key_end(p, query)));
    smem.q_row[row] = static_cast<const T*>(p.q) + s.q_base + query * p.q_stride_seq + head * p.q_stride_head;
    smem.out_row[row] = s.out_base + query * p.out_stride_seq + head * p.out_stride_head;
  }

  // Both ends of what a query sees grow with the query. A warp without rows sees nothing.
  __device__ __forceinline__ void find_bounds(int num_rows) const {
    const int first = warp * Config::kWarpRows, last = min(first + Config::kWarpRows, num_rows) - 1;
    if (lane == 0) {
      const int2 low = smem.visible[first], high = smem.visible[max(last, first)];
      smem.bounds[warp] = make_int4(low.x, high.y, high.x, low.y);
      smem.move[warp] = true;
    }
    __syncwarp();
  }

  __device__ __forceinline__ void copy_q(const KeyTiles<T, Config>& keys) const {
    const auto [first, first_column] = keys.first_piece();
    const uint32_t place = ptx::smem_address(smem.q) + Rows::offset(first, first_column / 8);
    constexpr int kCopies = kTileQ / Layout::kRowStep;
    const T* rows[kCopies];  // all read before the first is copied, which they would wait for
#pragma unroll
    for (int i = 0; i < kCopies; ++i) rows[i] = smem.q_row[first + i * Layout::kRowStep];
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const bool valid = rows[i] != nullptr;
      const T* from = valid ? rows[i] + first_column : static_cast<const T*>(p.q);
#pragma unroll
      for (int c = 0; c < Layout::kChunkSteps; ++c) {
        const int column = 8 * c * Layout::kLanes;
        if (first_column + column >= p.head_dim) break;
        ptx::cp_async_16(place + i * Layout::kRowStep * kRowBytes + column * Layout::kItem, from + column, valid);
      }
    }
    keys.clear_padding(&smem.q[0][0], kTileQ, p.head_dim);
  }

  __device__ __forceinline__ void read_q(int step, uint32_t (&q)[kRowTiles][4]) const {
    const uint32_t at = ptx::smem_address(smem.q) + Rows::offset(warp * Config::kWarpRows + lane % 16, lane / 16);
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) ptx::ldmatrix_x4(q[m], Rows::behind(at, step * 32) + m * 16 * kRowBytes);
  }

  // scores = q k^T of the tile in `stage`; `also(step)` is called between the products.
  template <class Also>
  __device__ __forceinline__ void compute_scores(int stage, Scores& scores, const Also& also) const {
    clear(scores);
    const uint32_t k_at = ptx::smem_address(smem.keys.k[stage]) + Rows::offset(lane % 8 + lane / 16 * 8, lane / 8 % 2);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint32_t read[kRowTiles][4];
      if (step >= kKept) read_q(step, read);
      const auto& q = step < kKept ? kept[step] : read;
      also(step);
#pragma unroll
      for (int n = 0; n < kKeyTiles; n += 2) {
        uint32_t k[4];
        ptx::ldmatrix_x4(k, Rows::behind(k_at, step * 32) + n * 8 * kRowBytes);
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
          ptx::mma_m16n8k16<T>(scores[m][n], q[m], k[0], k[1]);
          ptx::mma_m16n8k16<T>(scores[m][n + 1], q[m], k[2], k[3]);
        }
      }
    }
  }

  // Of row i: `change(score, key)`, keys counted from the tile's first.
  template <class Change>
  __device__ __forceinline__ void change_row(int i, Scores& scores, const Change& change) const {
    const int first = 2 * (ptx::lane_id() % 4);
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& x = scores[i / 2][n][i % 2 * 2 + e];
        x = change(x, first + 8 * n + e);
      }
    }
  }

  // c tanh(x / c) = c (1 - 2 / (1 + e^(2 x / c))); near 0, where that cancels, the first terms of the series.
  static __device__ __forceinline__ float cap(float x, float c) {
    const float t = x / c;
    if (fabsf(t) < 0.0625f) return x * fmaf(t * t, fmaf(t * t, 2.0f / 15.0f, -1.0f / 3.0f), 1.0f);
    return c * (1.0f - __fdividef(2.0f, 1.0f + ptx::ex2_approx_ftz(t * (2.0f * kLog2E))));
  }

  // Scale, softcap, ALiBi and mask of a tile whose first key is key `begin` of the part. Hidden: -inf.
  __device__ __forceinline__ void apply_options(int begin, Scores& scores) const {
    const WorkItem& item = smem.item;
    const int64_t first = item.keys.begin + begin, batch = item.sequence.batch;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = first_row() + step_to(i);
      if (row >= item.num_rows) continue;
      const int64_t query = item.query_of(p, row), head = item.head_of(p, row, query);
      change_row(i, scores, [&](float x, int) { return x * p.scale; });
      if (p.softcap > 0.0f) change_row(i, scores, [&](float x, int) { return cap(x, p.softcap); });
      if (p.alibi_slopes.data != nullptr) {
        const float slope = load_float(p.alibi_slopes.data, p.alibi_slopes.dtype, batch * p.alibi_stride_batch + head);
        constexpr int64_t kFar = int64_t{1} << 30;
        const auto distance = static_cast<int>(max(min(query + item.sequence.offset - first, kFar), -kFar));
        change_row(i, scores, [&](float x, int key) { return x - slope * static_cast<float>(abs(distance - key)); });
      }
      if (p.mask.data == nullptr) continue;
      const int64_t at = (p.mask.batch_size > 1 ? batch * p.mask.stride_batch : 0) +
                         (p.mask.num_heads > 1 ? head * p.mask.stride_head : 0) + query * p.mask.stride_seq_q +
                         first * p.mask.stride_seq_k;
      const int64_t left = query < p.mask.seqlen_q ? p.mask.seqlen_k - first : 0;
      const int count = static_cast<int>(max(min(left, int64_t{kTileKV}), int64_t{0}));
      if (p.mask.dtype == DType::kBool) {
        const auto* mask = static_cast<const uint8_t*>(p.mask.data) + at;
        change_row(i, scores, [&](float x, int key) {
          return key < count && mask[key * p.mask.stride_seq_k] != 0 ? x : -INFINITY;
        });
      } else {
        change_row(i, scores, [&](float x, int key) {
          if (key >= count) return -INFINITY;
          const float bias = load_float(p.mask.data, p.mask.dtype, at + key * p.mask.stride_seq_k);
          return bias == -INFINITY ? -INFINITY : x + bias;  // -inf hides a NaN or +inf score, too
        });
      }
    }
  }

  __device__ __forceinline__ void hide(int begin, Scores& scores) const {
    const int row = first_row();
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int2 visible = smem.visible[row + step_to(i)];
      const int first = visible.x - begin, end = visible.y - begin;
      change_row(i, scores, [&](float x, int key) { return key < first || key >= end ? -INFINITY : x; });
    }
  }

  // The row's largest score or argument.
  __device__ __forceinline__ float largest_of(int i, const Scores& scores) const {
    float largest = -INFINITY;
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) largest = fmaxf(largest, scores[i / 2][n][i % 2 * 2 + e]);
    }
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
    return fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
  }

  __device__ __forceinline__ void clear_results(int i) {
#pragma unroll
    for (int n = 0; n < kDimTiles; ++n) acc[i / 2][n][i % 2 * 2] = acc[i / 2][n][i % 2 * 2 + 1] = 0.0f;
  }

  // The new one is no smaller.
  __device__ __forceinline__ void move_reference(int i, int row, float reference, float moved) {
    const bool careful = smem.careful;
    const float difference = reference - (moved == -INFINITY ? 0.0f : moved);
    const float factor =
        moved == reference ? 1.0f : ptx::ex2_approx_ftz(careful ? difference * scale_log2 : difference);
    if (ptx::lane_id() % 4 == 0) {
      smem.reference[row] = moved;
      smem.subtract[row] = careful || moved == -INFINITY ? 0.0f : moved;
      if (fabsf(moved) > kLargestReference && moved != -INFINITY) atomicExch(&smem.failed, 1);
    }
    row_sum[i] *= factor;
#pragma unroll
    for (int n = 0; n < kDimTiles; ++n) {
      acc[i / 2][n][i % 2 * 2] *= factor;
      acc[i / 2][n][i % 2 * 2 + 1] *= factor;
    }
  }

  // Moves the references to the largest scores; careful: subtracts them. So again in the next tile if careful, or if a row of
  // this warp has seen no key yet.
  __device__ __forceinline__ void move_references(Scores& scores) {
    const bool careful = smem.careful;
    bool again = careful;
    const int first = first_row();
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = first + step_to(i);
      const float reference = smem.reference[row], largest = largest_of(i, scores);
      const float exponent = largest * scale_log2, moved = fmaxf(reference, careful ? largest : exponent);
      if (exponent == -INFINITY && largest != -INFINITY) atomicExch(&smem.failed, 1);
      __syncwarp();
      move_reference(i, row, reference, moved);
      if (careful && moved != -INFINITY) change_row(i, scores, [&](float x, int) { return x - moved; });
      again = again || moved == -INFINITY;
    }
    again = __any_sync(0xffffffffu, again);
    if (ptx::lane_id() == 0) smem.move[warp] = again;
    __syncwarp();
  }

  // The exponentials of `fragment`, two of which make the operand of a step, and their sums.
  __device__ __forceinline__ void exponentiate(int fragment, const Scores& scores, const float (&subtract)[kRows],
                                               uint32_t (&weights)[kRowTiles][4], float (&sums)[kRows]) const {
    const int m = fragment / 2 % kRowTiles, n = fragment / (2 * kRowTiles) * 2 + fragment % 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = 2 * m + half;
      const float low = ptx::ex2_approx_ftz(fmaf(scores[m][n][2 * half], scale_log2, -subtract[i]));
      const float high = ptx::ex2_approx_ftz(fmaf(scores[m][n][2 * half + 1], scale_log2, -subtract[i]));
      sums[i] += low + high;
      weights[m][n % 2 * 2 + half] = pack<T>(low, high);
    }
  }

  // acc += e^scores v, with the sums of the exponentials. Those of the next 16 keys between the products of these.
  __device__ __forceinline__ void add_values(int stage, const Scores& scores, float (&sums)[kRows]) {
    constexpr int kFragments = 2 * kRowTiles;  // of 16 keys
    const int row = first_row();
    float subtract[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      subtract[i] = smem.subtract[row + step_to(i)];
      sums[i] = 0.0f;
    }
    uint32_t weights[2][kRowTiles][4];
#pragma unroll
    for (int f = 0; f < kFragments; ++f) exponentiate(f, scores, subtract, weights[0], sums);
    const uint32_t at = ptx::smem_address(smem.keys.v[stage]) + Rows::offset(lane % 16, lane / 16);
#pragma unroll
    for (int step = 0; step < kTileKV / 16; ++step) {
#pragma unroll
      for (int n = 0; n < kDimTiles; n += 2) {
        uint32_t v[4];
        ptx::ldmatrix_x4_trans(v, Rows::behind(at, n * 16) + step * 16 * kRowBytes);
        if (step + 1 < kTileKV / 16) {
#pragma unroll
          for (int f = n * kFragments / kDimTiles; f < (n + 2) * kFragments / kDimTiles; ++f) {
            exponentiate((step + 1) * kFragments + f, scores, subtract, weights[(step + 1) % 2], sums);
          }
        }
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
          ptx::mma_m16n8k16<T>(acc[m][n], weights[step % 2][m], v[0], v[1]);
          ptx::mma_m16n8k16<T>(acc[m][n + 1], weights[step % 2][m], v[2], v[3]);
        }
      }
      __syncwarp();  // the compiler moves no reads across it, for which it would lack registers
    }
  }

  // Large exponentials: the references move by powers of two. Some may have been too large for T. If careful, only NaNs are.
  __device__ __forceinline__ void keep_small(const float (&sums)[kRows]) {
    if (smem.careful) return;
    const int first = first_row();
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = first + step_to(i);
      if (!(sums[i] < kLargestSum)) atomicExch(&smem.failed, 1);
      const float reference = smem.reference[row];
      float sum = sums[i];  // the quad moves together
      sum = fmaxf(sum, __shfl_xor_sync(0xffffffffu, sum, 1));
      sum = fmaxf(sum, __shfl_xor_sync(0xffffffffu, sum, 2));
      __syncwarp();
      if (sum > 1.0f && sum < INFINITY) move_reference(i, row, reference, reference + static_cast<float>(ilogbf(sum)));
    }
    __syncwarp();
  }

  // What all steps need, and the first copies. `careful`: see `softmax` above.
  __device__ __forceinline__ void begin(const WorkItem& item, bool careful) {
    const KeyTiles<T, Config> keys(p, smem.keys, smem.item);
    keys.begin(item);
    if (threadIdx.x == 0) {
      smem.item = item;
      smem.careful = careful;
      smem.failed = 0;
    }
    find_rows(item);
    __syncthreads();
    if (p.paged) {
#pragma unroll 1
      for (int tile = 0; tile < 2; ++tile) {
        keys.request_page(tile);
        ptx::cp_async_commit();
        ptx::cp_async_wait<0>();
        keys.put_place(tile);
      }
      keys.request_page(2);
      __syncthreads();
    }
    copy_q(keys);
    keys.copy_at_once(0);
    ptx::cp_async_commit();
    keys.clear_padding();
    find_bounds(smem.item.num_rows);
#pragma unroll
    for (int i = 0; i < kRows; ++i) row_sum[i] = 0.0f;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int n = 0; n < kDimTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) acc[m][n][e] = 0.0f;
      }
    }
  }

  // Leaves the references, sums and results of the part's keys. False: something was too large; careful, nothing is.
  __device__ __forceinline__ bool attend() {
    const KeyTiles<T, Config> keys(p, smem.keys, smem.item);
#pragma unroll 1
    for (int first = 0; first < smem.keys.num_keys; first += kTileKV) {
      const int tile = first / kTileKV;
      const Pieces<Config> next = keys.pieces_of(tile + 1);
      const int4 bounds = smem.bounds[warp];
      ptx::cp_async_wait<0>();
      __syncthreads();
      if (p.paged) {
        keys.put_place(tile + 2);
        keys.request_page(tile + 3);
      }
      keys.copy_at_once(tile + 1);
      if (kKept > 0 && first == 0) {
#pragma unroll
        for (int step = 0; step < kKept; ++step) read_q(step, kept[step]);
      }
      const bool active = first < bounds.y && first + kTileKV > bounds.x;
      const bool all_visible = first >= bounds.z && first + kTileKV <= bounds.w;
      if (active) {
        Scores scores;
        compute_scores(tile % kStages, scores, [&](int step) { next.copy(step, kSteps); });
        ptx::cp_async_commit();
        if constexpr (kOptions) apply_options(first, scores);
        if (!all_visible) hide(first, scores);
        if (smem.move[warp]) move_references(scores);
        float sums[kRows];
        add_values(tile % kStages, scores, sums);
        bool large = false;
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
          row_sum[i] += sums[i];
          large = large || !(sums[i] <= kLargeSum);  // or NaN
        }
        if (__any_sync(0xffffffffu, large)) keep_small(sums);
      } else {
        next.copy(0, 1);
        ptx::cp_async_commit();
      }
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      row_sum[i] += __shfl_xor_sync(0xffffffffu, row_sum[i], 1);
      row_sum[i] += __shfl_xor_sync(0xffffffffu, row_sum[i], 2);
    }
    ptx::cp_async_wait<0>();  // of q, if there are no keys
    __syncthreads();
    return smem.careful || smem.failed == 0;
  }

  // The row's reference as parts of the keys are merged by: natural logarithm of what its sum is relative to.
  __device__ __forceinline__ float row_max(int row) const {
    return smem.reference[row] * (!smem.careful ? kLn2 : kOptions ? 1.0f : p.scale);
  }

  // A lane finishes a row. state.x: what its results are multiplied by; negative: they are 0.
  __device__ __forceinline__ void finish_rows() const {
    const int lane = ptx::lane_id();
    const int first = first_row();
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (lane % 4 == 0) smem.state[first + step_to(i)].y = row_sum[i];
    }
    __syncwarp();
    const WorkItem& item = smem.item;
    const int row = warp * Config::kWarpRows + lane;
    if (lane < Config::kWarpRows && row < item.num_rows) {
      float sum = smem.state[row].y, factor = 1.0f;
      if (p.lse != nullptr || p.sinks.data != nullptr) {
        const int64_t query = item.query_of(p, row), head = item.head_of(p, row, query);
        const RowResult result(p.sinks, head, row_max(row), sum);
        if (p.lse != nullptr) p.lse[item.sequence.lse_base + head * p.lse_stride_head + query] = result.lse;
        sum = result.sum, factor = result.factor;
      }
      smem.state[row].x = sum == 0.0f ? -1.0f : factor / sum;
    }
    __syncwarp();
  }

  // Results into q's place, of which a warp uses its own rows only, and from there in rows to memory.
  __device__ __forceinline__ void store_out() {
    finish_rows();
    const int lane = ptx::lane_id();
    char* results = reinterpret_cast<char*>(smem.q);
    const int first = first_row();
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = first + step_to(i);
      const float factor = smem.state[row].x;
      const uint32_t place = Rows::offset(row, 0) + 4 * (lane % 4);
      if (factor < 0.0f) clear_results(i);  // hidden values may be NaN
#pragma unroll
      for (int n = 0; n < kDimTiles; ++n) {
        const float* x = acc[i / 2][n] + i % 2 * 2;
        *reinterpret_cast<uint32_t*>(results + Rows::behind(place, 16 * n)) = pack<T>(x[0] * factor, x[1] * factor);
      }
    }
    __syncwarp();
    T* out = static_cast<T*>(p.out);
    const int begin = warp * Config::kWarpRows, end = min(begin + Config::kWarpRows, smem.item.num_rows);
    if (p.out_aligned_16) {
      constexpr int kPieces = kHeadDim / 8, kStep = 32 / kPieces;  // rows at a time
      const int piece = ptx::lane_id(), column = piece % kPieces * 8;
      if (piece / kPieces >= kStep || column >= p.head_dim_v) return;
#pragma unroll 8
      for (int row = begin + piece / kPieces; row < end; row += kStep) {
        *reinterpret_cast<uint4*>(out + smem.out_row[row] + column) =
            *reinterpret_cast<const uint4*>(results + Rows::offset(row, column / 8));
      }
    } else {
#pragma unroll 1
      for (int row = begin; row < end; ++row) {
#pragma unroll 1
        for (int column = lane; column < p.head_dim_v; column += 32) {
          out[smem.out_row[row] + column] =
              *reinterpret_cast<const T*>(results + Rows::offset(row, column / 8) + column % 8 * Layout::kItem);
        }
      }
    }
  }

  __device__ __forceinline__ void store_partial(const Partials& partials) const {
    const WorkItem& item = smem.item;
    const int first = first_row(), lane = ptx::lane_id();
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = first + step_to(i);
      if (row >= item.num_rows) continue;
      const int64_t index = partials.index(item.slot * p.num_kv_heads + item.kv_head, item.split, row);
      if (lane % 4 == 0) {
        partials.row_max[index] = row_max(row);
        partials.row_sum[index] = row_sum[i];
      }
#pragma unroll
      for (int n = 0; n < kDimTiles; ++n) {
        const int column = 8 * n + 2 * (lane % 4);
        if (column >= partials.row_floats) continue;
        const float* x = acc[i / 2][n] + i % 2 * 2;
        *reinterpret_cast<float2*>(partials.acc + index * partials.row_floats + column) = make_float2(x[0], x[1]);
      }
    }
  }
};

template <typename T, class Config, bool kOptions>
__global__ __launch_bounds__(Config::kThreads, Config::kMinBlocks) void attention_prefill_mma(
    const __grid_constant__ AttentionProblem problem, const __grid_constant__ RowTiles tiles,
    const __grid_constant__ WorkOrder order, const __grid_constant__ SplitPlan plan,
    const __grid_constant__ Partials partials, int64_t num_items) {
  extern __shared__ __align__(128) unsigned char dynamic_smem[];
  auto& smem = *reinterpret_cast<SharedStorage<T, Config>*>(dynamic_smem);
  const int64_t total = num_items * plan.max_splits;
  bool again = false;  // the same item, carefully
  for (int64_t work = blockIdx.x; work < total;) {
    const WorkItem item(problem, tiles, plan, order, num_items, work);
    if (item.num_rows == 0) {
      work += gridDim.x;
      continue;
    }
    Block<T, Config, kOptions> block(problem, smem);
    block.begin(item, again);
    again = !block.attend();
    work = smem.item.index;  // not kept in a register meanwhile
    if (!again) {
      if (smem.item.is_part) {
        block.store_partial(partials);
      } else {
        block.store_out();
      }
      work += gridDim.x;
    }
    if (work < total) __syncthreads();  // what the item left in shared memory has been read
  }
}

}  // namespace prefill_mma
}  // namespace dlattn::cuda
