// A consumer warp group of attention_prefill_wgmma: 64 rows of each item, from scores to results.
#pragma once

#include <cfloat>
#include <type_traits>

#include "cuda/attn/convert.cuh"
#include "cuda/attn/softmax.cuh"
#include "cuda/ptx/special.cuh"
#include "cuda/ptx/warp_group.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/wgmma/epilogue.cuh"
#include "cuda/wgmma/storage.cuh"

namespace dlattn::cuda {
namespace prefill_wgmma {

template <typename T, class Config, bool kSoftcap, bool kTurns>
struct Consumer {
  using Storage = SharedStorage<T, Config>;
  static constexpr int kHeadDim = Config::kHeadDim, kKeys = Config::kTileKV;
  static constexpr int kSteps = kHeadDim / 16;
  static constexpr bool kQInRegisters = Config::kQInRegisters;
  // The reference of a row moves when a thread's exponentials of a tile have a larger sum, or all so far a smaller one: float16
  // weights are as fine as float32 ones only near 1. At first, where causal rows may see few keys, less is enough: that little is
  // lost in one tile. Of rows with less than the last, some may be lost.
  static constexpr float kLargeSum = 256.0f, kSmallAtFirst = 0x1p-4f, kLeastSum = 0x1p-100f,
                         kSmallSum = std::is_same_v<T, __half> ? 0.25f : kSmallAtFirst;
  static_assert(kHeadDim % 16 == 0 && kKeys % 16 == 0);

  const AttentionProblem& p;
  const WorkList& list;
  Storage& smem;
  float scale_log2;
  float acc[kHeadDim / 2], scores[kKeys / 2];
  uint32_t weights[kKeys / 16][4];
  uint32_t q[kQInRegisters ? kSteps : 1][4];
  float reference[2], row_sum[2];  // of rows lane / 4 and 8 more of the warp; exponents of 2, if careful scores
  Ring<Config::kStages> v;         // of k one further, while a tile's products are outstanding

  __device__ __forceinline__ Consumer(const AttentionProblem& problem, const WorkList& work, Storage& storage)
      : p(problem), list(work), smem(storage) {
    scale_log2 = static_cast<volatile Storage&>(storage).scale_log2;
  }

  // All items.
  __device__ __forceinline__ void run(const TensorMaps& maps, const Partials& partials) {
    Ring<Storage::kItems> items;
    if (group() == Config::kGroups - 1) pass_turn();  // the first turn is group 0's
    for (;; items.next()) {
      wait(smem.item_full[items.place()], items.parity());
      const WorkItem& item = smem.items[items.place()];
      if (item.is_end) break;
      attend(item);
      store(item, maps, partials);
      __syncwarp();
      arrive(smem.item_empty[items.place()]);
    }
    if (group() == 0) await_turn();  // as often as it is passed
  }

 private:
  // Read again each time: they would cost registers.
  __device__ __forceinline__ static int lane() { return ptx::lane_id(); }
  __device__ __forceinline__ static int group() {
    return static_cast<int>(static_cast<uint32_t>(ptx::thread_id()) / 128) - 1;
  }
  __device__ __forceinline__ static int warp_row() { return ptx::thread_id() / 32 * 16 - 64; }  // the warp's first one

  // A barrier of whose phase each consumer warp is a part.
  __device__ __forceinline__ void release(uint64_t& barrier) const {
    if (lane() == 0) arrive(barrier);
  }

  // Turns: a group asks for the products of a tile when the group before it has asked for its own; so one group's exponentials
  // go with another one's products. Each group has one turn in each tile of an item.
  __device__ __forceinline__ static void await_turn() {
    if constexpr (kTurns) ptx::named_barrier_sync<256>(kFirstTurn + group());
  }
  __device__ __forceinline__ static void pass_turn() {
    if constexpr (kTurns)
      ptx::named_barrier_arrive<256>(group() + 1 == Config::kGroups ? kFirstTurn : kFirstTurn + group() + 1);
  }

  // A thread's row i of the group, or the last one that there is.
  __device__ __forceinline__ int row_of(const WorkItem& item, int i) const {
    return min(warp_row() + lane() / 4 + 8 * i, item.num_rows - 1);
  }
  __device__ __forceinline__ bool has_row(const WorkItem& item, int i) const {
    return warp_row() + lane() / 4 + 8 * i < item.num_rows;
  }
  __device__ __forceinline__ int low_of(const WorkItem& item, int row) const { return item.low_of(list, row); }
  __device__ __forceinline__ int high_of(const WorkItem& item, int row) const { return item.high_of(list, row); }

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

  __device__ __forceinline__ void issue_scores(const Ring<Config::kStages>& k) {
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
  __device__ __forceinline__ void issue_values() {
    const uint64_t values = ptx::wgmma_descriptor(ptx::smem_address(smem.v[v.place()]), kKeys * 128);
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) {
      ptx::Wgmma<T, kHeadDim, true>::rs(acc, weights[step], values + step * 128, 1);
    }
    ptx::wgmma_commit();
  }
  // Tiles that this group does not see. Of k and v in turn: the loader waits for both.
  __device__ __forceinline__ void skip(int count) {
#pragma unroll 1
    for (; count > 0; --count, v.next()) {
      wait(smem.k_full[v.place()], v.parity());
      __syncwarp();
      release(smem.k_empty[v.place()]);
      wait(smem.v_full[v.place()], v.parity());
      __syncwarp();
      release(smem.v_empty[v.place()]);
      await_turn(), pass_turn();
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

  // Careful items: moves the references to the largest scores, which become relative to them. factor: what sums and results
  // so far are multiplied by.
  __device__ __forceinline__ void move_references(float (&factor)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float largest = -INFINITY;
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j)
        largest = fmaxf(largest, fmaxf(scores[4 * j + 2 * i], scores[4 * j + 2 * i + 1]));
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
      const float moved = fmaxf(reference[i], largest);
      const float difference = reference[i] - moved;
      factor[i] = moved == reference[i] ? 1.0f : ptx::ex2_approx_ftz(difference * scale_log2);
      reference[i] = moved;
      if (moved != -INFINITY) {
#pragma unroll
        for (int j = 0; j < kKeys / 8; ++j) scores[4 * j + 2 * i] -= moved, scores[4 * j + 2 * i + 1] -= moved;
      }
    }
  }

  // Scores become exponentials. relative: the scores are, to the references.
  __device__ __forceinline__ void exponentiate(bool relative, float (&sums)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float subtract = relative ? 0.0f : reference[i];
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

  // Whether a row's exponentials, or their sum, are no longer near 1; or infinite, or NaN.
  __device__ __forceinline__ bool out_of_range(const float (&sums)[2]) const {
    const bool fits = sums[0] <= kLargeSum && sums[1] <= kLargeSum && sums[0] + row_sum[0] >= kSmallSum &&
                      sums[1] + row_sum[1] >= kSmallSum;
    return __any_sync(0xffffffffu, !fits);
  }
  // The same for the first tile. There a sum of 0 is no reason: in a causal one the first rows' few keys are not all threads',
  // and what is lost does not matter, or check_sums() will find that all is.
  __device__ __forceinline__ bool out_of_range_at_first(const float (&sums)[2]) const {
    return __any_sync(0xffffffffu, !(fits_at_first(sums[0]) && fits_at_first(sums[1])));
  }
  __device__ __forceinline__ static bool fits_at_first(float sum) {
    return (sum >= kSmallAtFirst || sum == 0.0f) && sum <= kLargeSum;
  }
  __device__ __forceinline__ static float quad_sum(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
  }
  // Then the references move, by powers of two, which rounds nothing. In a row's first tile also, if it is the row that is out of
  // range, so that the exponential of the tile's first key becomes a power of two: equal scores then have exact weights. Infinite
  // exponentials are beyond that.
  template <bool kFirst>
  __device__ __forceinline__ void keep_in_range(const WorkItem& item, float (&sums)[2], float (&factor)[2]) {
    if (item.careful) return;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float by = 0.0f, moved = 1.0f;
      if constexpr (kFirst) by = fraction_of_first(i, sums[i]), moved = ptx::ex2_approx_ftz(-by);
      const float sum = moved * quad_sum(sums[i]), before = quad_sum(row_sum[i]);
      const bool is_lost = sum + before > 0.0f && sum + before < kLeastSum;
      if ((!(sum < INFINITY) || is_lost) && has_row(item, i)) fail(item);
      const float near_one = sum > 1.0f ? sum : sum + before < 4 * kSmallSum ? sum + before : 1.0f;
      // At most as far as the power of two is a normal number.
      const int exponent = near_one >= kLeastSum && near_one < INFINITY ? min(exponent_of(near_one), 125) : 0;
      const float power = ptx::ex2_approx_ftz(-static_cast<float>(exponent));
      by += static_cast<float>(exponent), moved *= power;
      reference[i] += by, factor[i] *= moved;
      sums[i] = 0.25f * sum * power, row_sum[i] = 0.25f * before;  // each thread has its share, and so none too little
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j) scores[4 * j + 2 * i] *= moved, scores[4 * j + 2 * i + 1] *= moved;
    }
  }
  // Of a normal number.
  __device__ __forceinline__ static int exponent_of(float x) { return (__float_as_int(x) >> 23) - 127; }

  // What the exponential of the tile's first key is above a power of two, in powers of 2: 0 up to 1, in steps of 2^-16, so that
  // references stay exact. 0 as well if a thread's row i is in range, or that exponential 0 or infinite.
  __device__ __forceinline__ float fraction_of_first(int i, float sum) const {
    const unsigned outside = __ballot_sync(0xffffffffu, !fits_at_first(sum));
    const float first = __shfl_sync(0xffffffffu, ptx::wgmma_copy(scores[2 * i]), 0, 4);
    const bool is_normal = first >= FLT_MIN && first < INFINITY;
    if ((outside >> (lane() & ~3) & 15) == 0 || !is_normal) return 0.0f;
    return rintf(__log2f(ldexpf(first, -exponent_of(first))) * 0x1p16f) * 0x1p-16f;
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
  __device__ __forceinline__ void step(const WorkItem& item, int tile, bool masked) {
    const Ring<Config::kStages> k{v.used + 1};
    wait(smem.k_full[k.place()], k.parity());
    await_turn();
    ptx::wgmma_fence();
    issue_scores(k);
    wait(smem.v_full[v.place()], v.parity());
    ptx::wgmma_fence();
    issue_values();
    pass_turn();
    ptx::wgmma_wait<1>();
    ptx::wgmma_pin(scores);
    release(smem.k_empty[k.place()]);
    if constexpr (kSoftcap) cap();
    float factor[2] = {1.0f, 1.0f}, sums[2];
    const bool careful = masked && item.careful;
    if (masked) hide(item, tile);
    if (careful) move_references(factor);
    exponentiate(careful, sums);
    // The branch also keeps the compiler from waiting for the products before there are exponentials.
    const bool moves = out_of_range(sums);
    if (moves) keep_in_range<false>(item, sums, factor);
    ptx::wgmma_wait<0>();
    ptx::wgmma_pin(acc);
    release(smem.v_empty[v.place()]);
    v.next();
    if (moves || careful) {
#pragma unroll
      for (int x = 0; x < kHeadDim / 2; ++x) acc[x] *= factor[x / 2 % 2];
      row_sum[0] *= factor[0], row_sum[1] *= factor[1];
    }
    row_sum[0] += sums[0], row_sum[1] += sums[1];
    convert();
  }

  // An item's tiles, the last ones first.
  __device__ __forceinline__ void attend(const WorkItem& item) {
    // Where registers are few, read again each time.
    std::conditional_t<(Config::kConsumerRegs > 200), const TileWalk, const TileWalk&> walk = item.walks[group()];
    wait(smem.q_full, item.q_parity);
    load_q();
    skip(item.last_tile - walk.last);
    wait(smem.k_full[v.place()], v.parity());
    await_turn();
    ptx::wgmma_fence();
    issue_scores(v);
    pass_turn();
    ptx::wgmma_wait<0>();
    ptx::wgmma_pin(scores);
    release(smem.k_empty[v.place()]);
    reference[0] = reference[1] = item.careful ? -INFINITY : 0.0f;
    row_sum[0] = row_sum[1] = 0.0f;
    float factor[2] = {1.0f, 1.0f}, sums[2];
    if constexpr (kSoftcap) cap();
    if (walk.last >= walk.whole_end || walk.last < walk.whole_begin) hide(item, walk.last);
    if (item.careful) move_references(factor);
    exponentiate(item.careful, sums);
    // Without turns the first warp's delay, where a causal tile begins, keeps the groups apart: 13.2 us instead of 14.4.
    constexpr bool kByDelay = kQInRegisters && !kTurns;
    if (kByDelay ? out_of_range(sums) : out_of_range_at_first(sums)) keep_in_range<true>(item, sums, factor);
    row_sum[0] = sums[0], row_sum[1] = sums[1];
    convert();
#pragma unroll
    for (int x = 0; x < kHeadDim / 2; ++x) acc[x] = 0.0f;
#pragma unroll 1
    for (int tile = walk.last - 1; tile >= walk.first; --tile) {
      step(item, tile, tile >= walk.whole_end || tile < walk.whole_begin);
    }
    if constexpr (!kQInRegisters) release(smem.q_empty);
    wait(smem.v_full[v.place()], v.parity());
    ptx::wgmma_fence();
    issue_values();
    ptx::wgmma_wait<0>();
    ptx::wgmma_pin(acc);
    release(smem.v_empty[v.place()]);
    v.next();
    skip(walk.first - item.first_tile);
  }

  __device__ __forceinline__ void store(const WorkItem& item, const TensorMaps& maps, const Partials& partials) {
    const Epilogue<T, Config> epilogue(p, smem, item, group());
    row_sum[0] = quad_sum(row_sum[0]), row_sum[1] = quad_sum(row_sum[1]);
    if (!(fminf(row_sum[0], row_sum[1]) >= kLeastSum)) check_sums(item);
    if (!item.is_part) {
      float factor[2];
      if (p.lse == nullptr && p.sinks.data == nullptr) {
        for (int i = 0; i < 2; ++i) factor[i] = row_sum[i] == 0.0f ? -1.0f : __fdividef(1.0f, row_sum[i]);
      } else {
        for (int i = 0; i < 2; ++i) factor[i] = epilogue.finish_row(i, row_max(item, i), row_sum[i]);
      }
      epilogue.store_out(maps, acc, factor);
    } else {
      for (int i = 0; i < 2; ++i) epilogue.store_partial(partials, acc, i, row_max(item, i), row_sum[i]);
    }
  }

  // Natural logarithm of what the exponentials are relative to.
  __device__ __forceinline__ float row_max(const WorkItem& item, int i) const {
    return row_sum[i] == 0.0f ? -INFINITY : reference[i] * (item.careful ? list.scale_log2 * kLn2 : kLn2);
  }

  // Exponentials of a row may have been lost, unless it sees no keys.
  __device__ __forceinline__ void check_sums(const WorkItem& item) const {
    if (item.careful) return;
    for (int i = 0; i < 2; ++i) {
      const int row = row_of(item, i);
      if (!(row_sum[i] >= kLeastSum) && has_row(item, i) && low_of(item, row) < high_of(item, row)) fail(item);
    }
  }
};

}  // namespace prefill_wgmma
}  // namespace dlattn::cuda
