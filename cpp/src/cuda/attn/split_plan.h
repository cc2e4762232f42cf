// Into how many parts the keys of a sequence are cut, from its real length, on the device. Pure.
//
// A work item is a (row tile, kv head); a part of one is a thread block. Cut into n parts each, as if all sequences
// were as long as this one, the items take (fitted to prototypes on an H200, 4-14 % rms):
//   C = items n thread blocks of c = keys bytes_per_key / n bytes; o thread blocks on an SM; BW: bytes/ns of all SMs
//   T(n) = X + 0.5 us where C <= SMs (one thread block on an SM hides its start and end less)
//            + (n > 1: 1.8 us of the merge's launch + n (0.01 us + items bytes_per_split / BW))
//   C <= o SMs  k = ceil(C / SMs), a = C - (k - 1) SMs of the last round:
//               X = max(c / R1, (k - 1) SMs c / BW + c / min(55, BW / a))
//   C > o SMs   f = floor(C / (o SMs)) whole waves, r thread blocks left over, which pile up o on an SM:
//               X = f max(c / R1, o SMs c / BW) + max(r c / BW, 0.7 c max(min(o, r) / 55, 1 / R1))
// For each n that is linear in the keys, so the host compares once: the fastest n grows with the keys, from threshold
// to threshold, and the device looks a length up among them. Only such n are tried as fill the SMs once, twice .. o
// times, two or three waves, or so many waves that the last one does not matter.
// A part has at least min_chunk keys and at most kMaxChunk, which balances one long sequence among short ones.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "cuda/attn/fast_div.h"
#include "host_device.h"

namespace dlattn::cuda {

struct KeyRange {
  int64_t begin, end;
};

// What a plan is made from.
struct SplitInput {
  int64_t items = 0;
  int64_t max_keys = 0;        // a bound of every sequence's keys
  bool lengths_differ = true;  // or may
  int64_t min_chunk = 128;     // keys, below which a part is not faster
  int32_t num_sms = 1, blocks_per_sm = 1;
  double bytes_per_key = 512.0;         // of k and v
  double bytes_per_split = 0.0;         // of partial results of one part of an item, written and read
  double bytes_per_ns_of_block = 55.0;  // R1: of a thread block alone on its SM
};

struct SplitPlan {
  struct Choice {
    int64_t min_keys = std::numeric_limits<int64_t>::max();  // from here on
    FastDiv splits;
  };
  static constexpr int kMaxChoices = 8;
  static constexpr int64_t kMaxChunk = 8192;

  Choice choices[kMaxChoices];  // by min_keys and by splits; the first from 0 keys on
  int64_t min_chunk = 0, max_chunk = kLimit;
  int64_t max_splits = 1;        // no sequence gets more
  int64_t workspace_splits = 1;  // the same whether lengths differ or not: the workspace's size may be asked for before

  static SplitPlan make(const SplitInput& in) {
    constexpr int64_t kMaxBlocks = 16;  // per slot, which bounds the workspace
    SplitPlan plan;
    plan.choices[0].min_keys = 0;
    if (in.items <= 0) return plan;
    const int64_t sms = in.num_sms, wave = sms * in.blocks_per_sm;
    const int64_t most = std::max<int64_t>(kMaxBlocks * wave / in.items, 1);

    int64_t candidates[kMaxCandidates];
    int count = 0;
    const auto add = [&](int64_t splits) {
      if (count < kMaxCandidates) candidates[count++] = std::clamp<int64_t>(splits, 1, most);
    };
    add(1);
    for (int64_t k = 1; k <= in.blocks_per_sm; ++k) add(k * sms / in.items);
    for (int64_t waves : {2, 3}) add(waves * wave / in.items);
    add((4 * wave + in.items - 1) / in.items);
    plan.choose(in, candidates, count);

    plan.min_chunk = in.min_chunk;
    const int64_t wanted = plan.choice_of(in.max_keys).splits.divisor;
    const int64_t at_most = (in.max_keys + plan.min_chunk - 1) / plan.min_chunk;
    const auto limit_chunk = [&](int64_t chunk) {  // and with it the parts
      plan.max_chunk = std::min(std::max(chunk, round_up((in.max_keys + most - 1) / most)), kLimit);
      const int64_t at_least = (in.max_keys + plan.max_chunk - 1) / plan.max_chunk;
      plan.max_splits = std::max<int64_t>({std::min(wanted, at_most), at_least, 1});
    };
    limit_chunk(kMaxChunk);
    plan.workspace_splits = plan.max_splits;
    if (!in.lengths_differ) limit_chunk(kLimit);
    return plan;
  }

  DLATTN_HOST_DEVICE const Choice& choice_of(int64_t keys) const {
    int chosen = 0;
    for (int i = 1; i < kMaxChoices; ++i) chosen += keys >= choices[i].min_keys ? 1 : 0;
    return choices[chosen];
  }

  // Keys of a part.
  DLATTN_HOST_DEVICE int64_t chunk(int64_t keys) const {
    const FastDiv& splits = choice_of(keys).splits;
    const int64_t size = round_up(splits.div(keys + splits.divisor - 1));
    return size < min_chunk ? min_chunk : size > max_chunk ? max_chunk : size;
  }

  DLATTN_HOST_DEVICE int64_t num_splits(int64_t keys) const {
    if (keys <= 0) return 1;
    const int64_t size = chunk(keys);
    return keys <= size ? 1 : (keys + size - 1) / size;
  }

  // Part `split` of `keys`; empty if there are fewer parts.
  DLATTN_HOST_DEVICE KeyRange part(KeyRange keys, int64_t split) const {
    const int64_t size = chunk(keys.end - keys.begin);
    const int64_t begin = keys.begin + split * size;
    return {begin < keys.end ? begin : keys.end, begin + size < keys.end ? begin + size : keys.end};
  }

  // T of the comment above: microseconds = fixed + per_key keys.
  struct Cost {
    double fixed, per_key;
  };
  static Cost cost_of(const SplitInput& in, int64_t splits) {
    constexpr double kBytesPerNs = 33.7;       // of an SM, when all read
    constexpr double kPiledBytesPerNs = 55.0;  // of a thread block whose neighbours on the SM are done
    const double sms = in.num_sms, bandwidth = kBytesPerNs * sms, alone = in.bytes_per_ns_of_block;
    const int64_t blocks = in.items * splits, wave = static_cast<int64_t>(in.num_sms) * in.blocks_per_sm;
    double ns_per_byte = 0.0;  // of a block
    if (blocks <= wave) {
      const int64_t before = (blocks - 1) / in.num_sms;  // rounds
      const auto last = static_cast<double>(blocks - before * in.num_sms);
      ns_per_byte = std::max(1.0 / alone, static_cast<double>(before) * sms / bandwidth +
                                              1.0 / std::min(kPiledBytesPerNs, bandwidth / last));
    } else {
      const auto waves = static_cast<double>(blocks / wave), left = static_cast<double>(blocks % wave);
      const double piled = std::min<double>(in.blocks_per_sm, left);
      ns_per_byte = waves * std::max(1.0 / alone, static_cast<double>(wave) / bandwidth);
      if (left > 0) {
        ns_per_byte += std::max(left / bandwidth, 0.7 * std::max(piled / kPiledBytesPerNs, 1.0 / alone));
      }
    }
    Cost cost = {0.0, 1e-3 * ns_per_byte * in.bytes_per_key / static_cast<double>(splits)};
    if (blocks <= in.num_sms) cost.fixed += 0.5;
    if (splits > 1) {
      const double partials = 1e-3 * static_cast<double>(in.items) * in.bytes_per_split / bandwidth;
      cost.fixed += 1.8 + static_cast<double>(splits) * (0.01 + partials);
    }
    return cost;
  }

 private:
  static constexpr int kMaxCandidates = 16;
  static constexpr int64_t kLimit = INT64_C(1) << 30;  // keys of a part are counted in 32 bits

  static DLATTN_HOST_DEVICE int64_t round_up(int64_t keys) { return (keys + 31) / 32 * 32; }

  // The lower envelope of the candidates' costs, from 1 part at 0 keys on.
  void choose(const SplitInput& in, const int64_t* candidates, int count) {
    int64_t splits = 1, from = 0;
    for (int chosen = 1; chosen < kMaxChoices; ++chosen) {
      const Cost now = cost_of(in, splits);
      int64_t best = 0;
      double best_from = 0.0, best_per_key = 0.0;
      for (int i = 0; i < count; ++i) {
        const Cost next = cost_of(in, candidates[i]);
        if (candidates[i] <= splits || next.per_key >= now.per_key * 0.999) continue;
        const double keys =
            std::max((next.fixed - now.fixed) / (now.per_key - next.per_key), static_cast<double>(from));
        if (best > 0 && (keys > best_from || (keys == best_from && next.per_key >= best_per_key))) continue;
        best = candidates[i], best_from = keys, best_per_key = next.per_key;
      }
      if (best == 0 || best_from > static_cast<double>(in.max_keys)) return;
      splits = best;
      from = static_cast<int64_t>(best_from) + 1;
      choices[chosen].min_keys = from;
      choices[chosen].splits = FastDiv(splits);
    }
  }
};

}  // namespace dlattn::cuda
