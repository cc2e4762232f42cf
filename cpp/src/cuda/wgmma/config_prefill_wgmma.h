// Tiles of attention_prefill_wgmma. Host and device see the same numbers.
#pragma once

namespace dlattn::cuda {

constexpr int kAnyKeys = 1 << 30;

template <int kHeadDimMax, int kNumGroups, int kKeys, int kNumStages, bool kKeepQ, int kTurnsUpTo,
          int kProducerRegisters, int kConsumerRegisters, int kBlocksOfSm = 1>
struct PrefillWgmmaTile {
  static constexpr int kHeadDim = kHeadDimMax;  // head_dim and head_dim_v up to this
  static constexpr int kGroups = kNumGroups;    // consumer warp groups, of 64 rows each
  static constexpr int kTileQ = 64 * kGroups, kTileKV = kKeys;
  static constexpr int kStages = kNumStages;            // tiles of k and of v in shared memory
  static constexpr int kPanels = (kHeadDim + 63) / 64;  // of 64 columns: 128 bytes of each row
  static constexpr bool kQInRegisters = kKeepQ;
  static constexpr int kOutPanels = kPanels < 3 ? kPanels : 0;  // of results in shared memory; else from registers
  static constexpr int kTurnKeys = kTurnsUpTo;                  // up to so many the groups take turns; 0: never
  static constexpr int kThreads = 128 * (kGroups + 1);          // the first warp group is the producer
  static constexpr int kBlocks = kBlocksOfSm;                   // thread blocks per SM
  static constexpr int kProducerRegs = kProducerRegisters, kConsumerRegs = kConsumerRegisters;
  // Panels of q, k, v and of results, and 1 KiB for barriers and the like.
  static constexpr int kSharedBytes = 128 * (kPanels * (kTileQ + 2 * kStages * kTileKV) + kOutPanels * kTileQ) + 1024;
  static_assert(kBlocks * (kSharedBytes + 1024) <= 228 * 1024, "sm_90: 1 KiB of each thread block is reserved");
  static_assert(kTileKV % 16 == 0 && kTileKV <= 256, "rows of a box of TMA, columns of a wgmma and its depth");
  static_assert(kGroups > 1 || kTurnKeys == 0);
  static_assert(kStages > 1, "a group may be a tile ahead of another one");
  static_assert(kProducerRegs % 8 == 0 && kConsumerRegs % 8 == 0, "setmaxnreg");
  // setmaxnreg moves registers that the block was started with: the same number for each thread, a multiple of 8.
  static constexpr int kStartRegs = 64 * 1024 / (kBlocks * kThreads) / 8 * 8;
  static_assert(kProducerRegs + kGroups * kConsumerRegs <= (kGroups + 1) * (kStartRegs < 255 ? kStartRegs : 255),
                "else the increase waits for ever");
};

// kSoftcap: takes a softcap. kSmall: for short sequences, where independent blocks on an SM hide each other's ends.
enum class PrefillWgmmaKind { kPlain, kSoftcap, kSmall };

// By head_dim. Measured: docs/kernels/prefill-wgmma.md.
template <int kHeadDim, PrefillWgmmaKind kKind>
struct PrefillWgmmaConfig;
template <>
struct PrefillWgmmaConfig<64, PrefillWgmmaKind::kPlain> : PrefillWgmmaTile<64, 3, 128, 4, false, 2048, 32, 160> {};
template <>
struct PrefillWgmmaConfig<64, PrefillWgmmaKind::kSoftcap> : PrefillWgmmaTile<64, 3, 96, 2, false, 2048, 40, 152> {};
template <>
struct PrefillWgmmaConfig<64, PrefillWgmmaKind::kSmall> : PrefillWgmmaTile<64, 1, 80, 2, false, 0, 32, 128, 3> {};
template <PrefillWgmmaKind kKind>
struct PrefillWgmmaConfig<128, kKind> : PrefillWgmmaTile<128, 2, 128, 2, true, 2048, 40, 232> {};
template <PrefillWgmmaKind kKind>
struct PrefillWgmmaConfig<192, kKind> : PrefillWgmmaTile<192, 2, 112, 2, false, kAnyKeys, 40, 232> {};
template <PrefillWgmmaKind kKind>
struct PrefillWgmmaConfig<256, kKind> : PrefillWgmmaTile<256, 2, 80, 2, false, kAnyKeys, 40, 232> {};

}  // namespace dlattn::cuda
