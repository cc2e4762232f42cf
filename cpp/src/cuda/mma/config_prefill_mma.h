// Tiles of attention_prefill_mma. Host and device see the same numbers.
#pragma once

namespace dlattn::cuda {

template <int kHeadDimMax, int kRowsOfWarp, int kNumWarps, int kKeys, int kBlocks, int kStepsKept = 0>
struct PrefillMmaTile {
  static constexpr int kHeadDim = kHeadDimMax;  // head_dim and head_dim_v up to this
  static constexpr int kWarpRows = kRowsOfWarp, kWarps = kNumWarps, kThreads = 32 * kWarps;
  static constexpr int kTileQ = kWarpRows * kWarps, kTileKV = kKeys;
  static constexpr int kStages = 2;           // tiles of k and of v in shared memory
  static constexpr int kMinBlocks = kBlocks;  // per SM, which bounds the registers
  static constexpr int kKept = kStepsKept;    // steps of 16 columns of q that stay in registers
  // q, k, v; of each row and each key what the kernel looks up; of the work item
  static constexpr int kSharedBytes =
      2 * kHeadDim * (kTileQ + 2 * kStages * kTileKV) + 40 * kTileQ + 16 * kWarps + 40 * kTileKV + 512;
  static constexpr int kBytesInFlight = 2 * 2 * kTileKV * kHeadDim;  // a tile of k and of v
  static_assert(kMinBlocks * (kSharedBytes + 1024) <= 228 * 1024, "sm_90: 1 KiB of each thread block is reserved");
};

// kOptions: with softcap, mask and ALiBi, which cost registers, and any scale. kSmall: for grids that leave SMs to one block.
enum class PrefillKind { kPlain, kOptions, kSmall };

// By head_dim. Measured: docs/kernels/mma.md.
template <int kHeadDim, PrefillKind kKind>
struct PrefillMmaConfig;
template <>
struct PrefillMmaConfig<64, PrefillKind::kPlain> : PrefillMmaTile<64, 32, 4, 48, 3, 1> {};
template <>
struct PrefillMmaConfig<96, PrefillKind::kPlain> : PrefillMmaTile<96, 32, 4, 64, 2> {};
template <>
struct PrefillMmaConfig<128, PrefillKind::kPlain> : PrefillMmaTile<128, 32, 4, 64, 2> {};
template <>
struct PrefillMmaConfig<192, PrefillKind::kPlain> : PrefillMmaTile<192, 16, 8, 64, 1, 12> {};
template <>
struct PrefillMmaConfig<256, PrefillKind::kPlain> : PrefillMmaTile<256, 16, 8, 64, 1, 12> {};
template <>
struct PrefillMmaConfig<64, PrefillKind::kOptions> : PrefillMmaTile<64, 32, 4, 64, 2> {};
template <>
struct PrefillMmaConfig<128, PrefillKind::kOptions> : PrefillMmaTile<128, 32, 4, 32, 2> {};
template <>
struct PrefillMmaConfig<256, PrefillKind::kOptions> : PrefillMmaTile<256, 16, 8, 32, 1, 16> {};
template <>
struct PrefillMmaConfig<128, PrefillKind::kSmall> : PrefillMmaTile<128, 16, 4, 64, 2, 8> {};

}  // namespace dlattn::cuda
