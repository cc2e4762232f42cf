// Tiles of attention_decode_mma. Host and device see the same numbers.
#pragma once

namespace dlattn::cuda {

// 64 KiB in flight on an SM reach its share of the memory's rate. Here: 96 KiB with one thread block on it, 192 with
// two (head_dim 64, 128); 128 KiB with the one that fits at 256.
template <int kHeadDimMax>
struct DecodeMmaConfig {
  static_assert(kHeadDimMax == 64 || kHeadDimMax == 128 || kHeadDimMax == 256);
  static constexpr int kHeadDim = kHeadDimMax;  // head_dim and head_dim_v up to this
  static constexpr int kRows = 16;              // query rows of a kv head that a thread block serves: M of the MMA
  static constexpr int kWarps = 4, kThreads = 32 * kWarps;
  static constexpr int kTileKeys = kHeadDim == 64 ? 32 : 16;  // of a warp
  static constexpr int kSlots = kHeadDim == 256 ? 2 : 3;      // tiles of k and of v in a warp's ring
  static constexpr int kMinBlocks = kHeadDim == 256 ? 1 : 2;  // per SM: shared memory allows no more
  static constexpr bool kQueryInRegisters = kHeadDim < 256;   // else read from shared memory for every tile

  static constexpr int kRowBytes = 2 * kHeadDim, kTileBytes = kTileKeys * kRowBytes;  // of k or v
  static constexpr int kRingBytes = 2 * kSlots * kTileBytes;
  static constexpr int kResultPitch = kHeadDim + 8;  // floats; the rows of a fragment's half lie in different banks
  static constexpr int kSharedBytes =
      kWarps * kRingBytes + kRows * kRowBytes + 2 * kWarps * kRows * 4 + kRows * 8 + 128;
  static constexpr int kBytesInFlight = kWarps * kSlots * kTileKeys * 2 * kHeadDim * 2;

  static_assert(kRows * kResultPitch * 4 <= kRingBytes, "a warp leaves its result in its ring");
  static_assert(kSharedBytes <= 163 * 1024, "sm_80");
  static_assert(kMinBlocks * (kSharedBytes + 1024) <= 228 * 1024, "sm_90: 1 KiB of each thread block is reserved");
};

}  // namespace dlattn::cuda
