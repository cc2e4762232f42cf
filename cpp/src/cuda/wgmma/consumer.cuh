// A consumer warp group of attention_prefill_wgmma: 64 rows of each item, from scores to results.
#pragma once

#include "cuda/attn/convert.cuh"
#include "cuda/attn/softmax.cuh"
#include "cuda/ptx/special.cuh"
#include "cuda/ptx/warp_group.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/wgmma/epilogue.cuh"
#include "cuda/wgmma/storage.cuh"

namespace dlattn::cuda {
namespace prefill_wgmma {

// Which tiles of keys a group walks over, from the last to the first: those with keys that some of its rows sees. Of them
// those from whole_begin up to whole_end are seen by all rows, and so is some key from whole_end on.
struct TileWalk {
  int first, last, whole_begin, whole_end;
};

template <typename T, class Config, bool kSoftcap>
struct Consumer {
  using Storage = SharedStorage<T, Config>;
  static constexpr int kHeadDim = Config::kHeadDim, kKeys = Config::kTileKV, kPanels = Config::kPanels;
  static constexpr int kSteps = kHeadDim / 16;
  static constexpr bool kQInRegisters = Config::kQInRegisters, kOwnOut = Config::kOwnOut;
  // Of a row's exponentials in a thread and tile: from when on the reference moves.
  static constexpr float kLargeSum = 256.0f;
  static constexpr float kLargestReference = 1024.0f;  // beyond, its rounding would show
  static_assert(kHeadDim % 16 == 0 && kKeys % 16 == 0);

  const AttentionProblem& p;
  const WorkList& list;
  Storage& smem;
  float scale_log2;
  float acc[kHeadDim / 2], scores[kKeys / 2];
  uint32_t weights[kKeys / 16][4];
  uint32_t q[kQInRegisters ? kSteps : 1][4];
  float reference[2], row_sum[2];  // of rows lane / 4 and 8 more of the warp; exponents of 2, if careful scores
  Ring<Config::kStages> k, v;

  __device__ __forceinline__ Consumer(const AttentionProblem& problem, const WorkList& work, Storage& storage)
      : p(problem), list(work), smem(storage) {
    scale_log2 = static_cast<volatile Storage&>(storage).scale_log2;
  }

  // All items.
  __device__ __forceinline__ void run(const TensorMaps& maps, const Partials& partials) {
    Ring<Storage::kItems> items;
    for (;; items.next()) {
      wait(smem.item_full[items.place()], items.parity());
      const WorkItem& item = smem.items[items.place()];
      if (item.kind == WorkItem::kExit) return;
      const bool is_item = item.kind == WorkItem::kItem;
      if (is_item) {
        attend(item);
        store(item, maps, partials);
      }
      __syncwarp();
      if (is_item && !kOwnOut) release(smem.q_empty);
      release(smem.item_empty[items.place()]);
    }
  }

 private:
  // Read again each time: they would cost registers.
  __device__ __forceinline__ static int lane() { return ptx::lane_id(); }
  __device__ __forceinline__ static int group() { return ptx::thread_id() / 128 - 1; }
  __device__ __forceinline__ static int warp_row() { return ptx::thread_id() / 32 * 16 - 64; }  // the warp's first one

  // A barrier of whose phase each consumer warp is a part.
  __device__ __forceinline__ void release(uint64_t& barrier) const {
    if (lane() == 0) arrive(barrier);
  }

  // A thread's row i of the group, or the last one that there is.
  __device__ __forceinline__ int row_of(const WorkItem& item, int i) const {
    return min(warp_row() + lane() / 4 + 8 * i, item.num_rows - 1);
  }
  __device__ __forceinline__ bool has_row(const WorkItem& item, int i) const {
    return warp_row() + lane() / 4 + 8 * i < item.num_rows;
  }
  // Keys that a row sees: from low up to high.
  __device__ __forceinline__ int low_of(const WorkItem& item, int row) const {
    return max(item.first_query + row + item.offset - list.window_left, item.begin);
  }
  __device__ __forceinline__ int high_of(const WorkItem& item, int row) const {
    return min(item.first_query + row + item.offset + list.window_right + 1, item.end);
  }

  __device__ __forceinline__ TileWalk walk_of(const WorkItem& item) const {
    // Both bounds grow with the row. A group without rows takes one tile, as if it had the last one.
    const int first = min(group() * 64, item.num_rows - 1), last = min(first + 63, item.num_rows - 1);
    const int low = low_of(item, first), high = high_of(item, last);
    TileWalk walk;
    walk.first = min(max(low / kKeys, item.first_tile), item.last_tile);
    walk.last = min(max((high - 1) / kKeys, walk.first), item.last_tile);
    if (item.rows_of(group()) <= 0) walk.last = walk.first;
    walk.whole_begin = item.careful ? kFar : (low_of(item, last) + kKeys - 1) / kKeys;
    walk.whole_end = item.careful ? 0 : (high_of(item, first) - 1) / kKeys;
    return walk;
  }

  __device__ __forceinline__ void load_q() {
    if constexpr (kQInRegisters) {
      const int row = warp_row() + lane() % 16;
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const int chunk = (2 * (step % 4) + lane() / 16) ^ (row & 7);
        ptx::ldmatrix_x4(q[step], ptx::smem_address(smem.q[step / 4][row]) + 16 * chunk);
      }
      __syncwarp();
      release(smem.q_empty);
    }
  }

  __device__ __forceinline__ void issue_scores() {
    const uint64_t keys = ptx::wgmma_descriptor(ptx::smem_address(smem.k[k.place()]), 0);
    const uint32_t queries_at = __shfl_sync(0xffffffffu, ptx::thread_id() / 128 - 1, 0) * 64 * 128;
    const uint64_t queries = ptx::wgmma_descriptor(ptx::smem_address(smem.q) + queries_at, 0);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const uint64_t b = keys + step % 4 * 2 + step / 4 * (kKeys * 8);
      if constexpr (kQInRegisters) {
        ptx::Wgmma<T, kKeys, false>::rs(scores, q[step], b, step > 0);
      } else {
        ptx::Wgmma<T, kKeys, false>::ss(scores, queries + step % 4 * 2 + step / 4 * (Config::kTileQ * 8), b, step > 0);
      }
    }
    ptx::wgmma_commit();
  }
  __device__ __forceinline__ void issue_values(int accumulate) {
    const uint64_t values = ptx::wgmma_descriptor(ptx::smem_address(smem.v[v.place()]), kKeys * 128);
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) {
      ptx::Wgmma<T, kHeadDim, true>::rs(acc, weights[step], values + step * 128, accumulate | (step > 0));
    }
    ptx::wgmma_commit();
  }
  // Tiles that this group does not see. Of k and v in turn: the loader waits for both.
  __device__ __forceinline__ void skip(int count) {
#pragma unroll 1
    for (; count > 0; --count, k.next(), v.next()) {
      __syncwarp();
      wait(smem.k_full[k.place()], k.parity());
      release(smem.k_empty[k.place()]);
      wait(smem.v_full[v.place()], v.parity());
      release(smem.v_empty[v.place()]);
    }
  }

  __device__ __forceinline__ void cap() {
    if (!list.capped) return;
    // tanh x = 1 - 2 / (1 + e^2x)
#pragma unroll
    for (int i = 0; i < kKeys / 2; ++i) {
      scores[i] = 1.0f - __fdividef(2.0f, 1.0f + ptx::ex2_approx_ftz(scores[i] * list.cap_scale));
    }
  }

  __device__ __forceinline__ void hide(const WorkItem& item, int tile) {
    const int first = tile * kKeys + 2 * (lane() % 4);
    const int2 low = make_int2(low_of(item, row_of(item, 0)) - first, low_of(item, row_of(item, 1)) - first);
    const int2 high = make_int2(high_of(item, row_of(item, 0)) - first, high_of(item, row_of(item, 1)) - first);
    if (__any_sync(0xffffffffu, low.y > -6)) {  // else none of the tile's keys is before low
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          if (8 * j + e < low.x) scores[4 * j + e] = -INFINITY;
          if (8 * j + e < low.y) scores[4 * j + 2 + e] = -INFINITY;
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kKeys / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        if (8 * j + e >= high.x) scores[4 * j + e] = -INFINITY;
        if (8 * j + e >= high.y) scores[4 * j + 2 + e] = -INFINITY;
      }
    }
  }

  // Moves the references to the largest scores. factor: what sums and results so far are multiplied by.
  __device__ __forceinline__ void move_references(const WorkItem& item, float (&factor)[2]) {
    const bool careful = item.careful;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float largest = -INFINITY;
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j)
        largest = fmaxf(largest, fmaxf(scores[4 * j + 2 * i], scores[4 * j + 2 * i + 1]));
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
      const float moved = fmaxf(reference[i], careful ? largest : largest * scale_log2);
      const float difference = reference[i] - moved;
      factor[i] = moved == reference[i] ? 1.0f : ptx::ex2_approx_ftz(careful ? difference * scale_log2 : difference);
      reference[i] = moved;
      if (!careful && largest != -INFINITY && !(fabsf(moved) <= kLargestReference) && has_row(item, i)) fail(item);
      if (careful && moved != -INFINITY) {
#pragma unroll
        for (int j = 0; j < kKeys / 8; ++j) scores[4 * j + 2 * i] -= moved, scores[4 * j + 2 * i + 1] -= moved;
      }
    }
  }

  // Scores become exponentials. A row that has seen no finite score yet makes infinite ones in a tile that is not masked:
  // the item fails.
  __device__ __forceinline__ void exponentiate(bool masked, bool careful, float (&sums)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float subtract = masked && (careful || reference[i] == -INFINITY) ? 0.0f : reference[i];
      float even = 0.0f, odd = 0.0f;
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j) {
        float &a = scores[4 * j + 2 * i], &b = scores[4 * j + 2 * i + 1];
        a = ptx::ex2_approx_ftz(fmaf(a, scale_log2, -subtract));
        b = ptx::ex2_approx_ftz(fmaf(b, scale_log2, -subtract));
        even += a, odd += b;
      }
      sums[i] = even + odd;
    }
  }

  __device__ __forceinline__ void fail(const WorkItem& item) const { smem.failed[&item - smem.items] = 1; }

  // Large exponentials: the references move by powers of two. Infinite ones, or NaNs, are beyond that.
  __device__ __forceinline__ void keep_small(const WorkItem& item, float (&sums)[2], float (&factor)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (!(sums[i] < INFINITY) && !item.careful && has_row(item, i)) fail(item);
      float sum = sums[i];  // the quad moves together
      sum = fmaxf(sum, __shfl_xor_sync(0xffffffffu, sum, 1));
      sum = fmaxf(sum, __shfl_xor_sync(0xffffffffu, sum, 2));
      const float by = !item.careful && sum > 1.0f && sum < INFINITY ? static_cast<float>(ilogbf(sum)) : 0.0f;
      const float moved = ptx::ex2_approx_ftz(-by);
      reference[i] += by, factor[i] *= moved, sums[i] *= moved;
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j) scores[4 * j + 2 * i] *= moved, scores[4 * j + 2 * i + 1] *= moved;
    }
  }

  __device__ __forceinline__ void convert() {
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) {
#pragma unroll
      for (int r = 0; r < 4; ++r) weights[step][r] = pack<T>(scores[8 * step + 2 * r], scores[8 * step + 2 * r + 1]);
    }
  }

  // A tile behind the first one: its scores, while the products of the tile before are computed; its exponentials, while
  // those still are.
  __device__ __forceinline__ void step(const WorkItem& item, int tile, bool masked, int accumulate) {
    wait(smem.k_full[k.place()], k.parity());
    ptx::wgmma_fence();
    issue_scores();
    wait(smem.v_full[v.place()], v.parity());
    ptx::wgmma_fence();
    issue_values(accumulate);
    ptx::wgmma_wait<1>();
    ptx::wgmma_pin(scores);
    release(smem.k_empty[k.place()]);
    k.next();
    if constexpr (kSoftcap) cap();
    float factor[2] = {1.0f, 1.0f}, sums[2];
    if (masked) {
      hide(item, tile);
      move_references(item, factor);
    }
    exponentiate(masked, masked && item.careful, sums);
    // The branch also keeps the compiler from waiting for the products before there are exponentials.
    const bool large = __any_sync(0xffffffffu, !(sums[0] <= kLargeSum && sums[1] <= kLargeSum));
    if (large) keep_small(item, sums, factor);
    ptx::wgmma_wait<0>();
    ptx::wgmma_pin(acc);
    release(smem.v_empty[v.place()]);
    v.next();
    if (masked || large) {
#pragma unroll
      for (int x = 0; x < kHeadDim / 2; ++x) acc[x] *= factor[x / 2 % 2];
      row_sum[0] *= factor[0], row_sum[1] *= factor[1];
    }
    row_sum[0] += sums[0], row_sum[1] += sums[1];
    convert();
  }

  // An item's tiles, the last ones first.
  __device__ __forceinline__ void attend(const WorkItem& item) {
    const TileWalk walk = walk_of(item);
    wait(smem.q_full, item.q_parity);
    load_q();
    skip(item.last_tile - walk.last);
    wait(smem.k_full[k.place()], k.parity());
    ptx::wgmma_fence();
    issue_scores();
    ptx::wgmma_wait<0>();
    ptx::wgmma_pin(scores);
    release(smem.k_empty[k.place()]);
    k.next();
    reference[0] = reference[1] = -INFINITY;
    float factor[2];
    if constexpr (kSoftcap) cap();
    if (walk.last >= walk.whole_end || walk.last < walk.whole_begin) hide(item, walk.last);
    move_references(item, factor);
    exponentiate(true, item.careful, row_sum);
    if (__any_sync(0xffffffffu, !(row_sum[0] < INFINITY && row_sum[1] < INFINITY))) keep_small(item, row_sum, factor);
    convert();
    int accumulate = 0;
#pragma unroll 1
    for (int tile = walk.last - 1; tile >= walk.first; --tile) {
      step(item, tile, tile >= walk.whole_end || tile < walk.whole_begin, accumulate);
      accumulate = 1;
    }
    if constexpr (!kQInRegisters && kOwnOut) release(smem.q_empty);
    wait(smem.v_full[v.place()], v.parity());
    ptx::wgmma_fence();
    issue_values(accumulate);
    ptx::wgmma_wait<0>();
    ptx::wgmma_pin(acc);
    release(smem.v_empty[v.place()]);
    v.next();
    skip(walk.first - item.first_tile);
  }

  __device__ __forceinline__ void store(const WorkItem& item, const TensorMaps& maps, const Partials& partials) {
    const Epilogue<T, Config> epilogue(p, smem, item, group());
    float factor[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      row_sum[i] += __shfl_xor_sync(0xffffffffu, row_sum[i], 1);
      row_sum[i] += __shfl_xor_sync(0xffffffffu, row_sum[i], 2);
      const float row_max = reference[i] * (item.careful ? scale_log2 * kLn2 : kLn2);
      if (item.is_part) {
        epilogue.store_partial(partials, acc, i, row_max, row_sum[i]);
      } else {
        factor[i] = epilogue.finish_row(i, row_max, row_sum[i]);
      }
    }
    if (!item.is_part) epilogue.store_out(maps, acc, factor);
  }
};

}  // namespace prefill_wgmma
}  // namespace dlattn::cuda
