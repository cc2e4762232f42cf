// Into how many parts the keys of a sequence are cut, from its real length, on the device. Pure.
//
// A work item is a (row tile, kv head); every item is cut alike, so that about `slots` thread blocks are busy if all
// sequences are as long as this one. A part has at least min_chunk keys (below, the merge costs more than it gains) and at
// most max_chunk, which balances one long sequence among short ones.
#pragma once

#include <cstdint>

#include "host_device.h"

namespace dlattn::cuda {

struct KeyRange {
  int64_t begin, end;
};

struct SplitPlan {
  int64_t splits = 1;  // wanted for a sequence of middling length
  int64_t min_chunk = 0, max_chunk = 0;
  int64_t max_splits = 1;  // no sequence gets more

  // `max_keys`: a bound of every sequence's keys; `slots`: thread blocks that run at a time.
  static SplitPlan make(int64_t items, int64_t max_keys, int64_t slots) {
    constexpr int64_t kMinChunk = 128, kMaxChunk = 2048,
                      kMaxBlocks = 16;            // kMaxBlocks: per slot, which bounds the workspace
    constexpr int64_t kLimit = INT64_C(1) << 30;  // keys of a part are counted in 32 bits
    SplitPlan plan;
    if (items <= 0) return plan;
    plan.splits = slots / items > 1 ? slots / items : 1;
    plan.min_chunk = kMinChunk;
    const int64_t most = kMaxBlocks * slots / items > plan.splits ? kMaxBlocks * slots / items : plan.splits;
    const int64_t bound = round_up((max_keys + most - 1) / most);
    plan.max_chunk = bound > kLimit ? kLimit : bound > kMaxChunk ? bound : kMaxChunk;
    // num_splits() grows with the keys, but for the step where the chunk reaches its maximum
    const int64_t middling = (max_keys + kMinChunk - 1) / kMinChunk;
    plan.max_splits = plan.num_splits(max_keys);
    if (plan.max_splits < plan.splits) plan.max_splits = middling < plan.splits ? middling : plan.splits;
    if (plan.max_splits < 1) plan.max_splits = 1;
    return plan;
  }

  DLATTN_HOST_DEVICE int64_t chunk(int64_t keys) const {
    const int64_t size = round_up((keys + splits - 1) / splits);
    return size < min_chunk ? min_chunk : size > max_chunk ? max_chunk : size;
  }

  DLATTN_HOST_DEVICE int64_t num_splits(int64_t keys) const {
    if (keys <= 0) return 1;
    const int64_t size = chunk(keys);
    return (keys + size - 1) / size;
  }

  // Part `split` of `keys`; empty if there are fewer parts.
  DLATTN_HOST_DEVICE KeyRange part(KeyRange keys, int64_t split) const {
    const int64_t size = chunk(keys.end - keys.begin);
    const int64_t begin = keys.begin + split * size;
    return {begin < keys.end ? begin : keys.end, begin + size < keys.end ? begin + size : keys.end};
  }

 private:
  static DLATTN_HOST_DEVICE int64_t round_up(int64_t keys) { return (keys + 31) / 32 * 32; }
};

}  // namespace dlattn::cuda
