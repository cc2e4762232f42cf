// Tiles of the simt kernels. Host and device see the same numbers.
#pragma once

#include "dlattn/params.h"

namespace dlattn::cuda {

// attention_prefill_simt: a tile of queries walks over tiles of keys; 16 threads share a row.
// kPlain: float32, 16-byte aligned rows, no page table, no softcap, ALiBi or mask: without the code for all that the loop is 6 %
// faster (docs/kernels/simt.md).
template <int kHeadDimMax, int kRows, int kKeys, int kBlocks, bool kIsPlain = false>
struct PrefillSimtConfig {
  static constexpr int kHeadDim = kHeadDimMax;  // head_dim and head_dim_v up to this
  static constexpr int kTileQ = kRows, kTileKV = kKeys;
  static constexpr int kMinBlocks = kBlocks;  // per SM, which bounds the registers
  static constexpr bool kPlain = kIsPlain;
  static constexpr int kThreads = 128, kThreadsX = 16, kThreadsY = 8;
  static constexpr int kRowsPerThread = kTileQ / kThreadsY, kKeysPerThread = kTileKV / kThreadsX;
  static constexpr int kColumnsPerThread = kHeadDim / kThreadsX;
  // q, k, v, probabilities as float32; rows of k are padded by 16 bytes
  static constexpr int kSharedBytes = 4 * (kHeadDim * (kTileQ + 2 * kTileKV) + kTileQ * kTileKV) + 16 * kTileKV;
};

// 64 KiB of shared memory (sm_75) hold the small ones; 113 KiB are half of what an SM of an H100 has.
using PrefillSimtHd64 = PrefillSimtConfig<64, 64, 32, 3>;               // 40 KiB
using PrefillSimtHd128 = PrefillSimtConfig<128, 64, 64, 2>;             // 113 KiB
using PrefillSimtHd128Plain = PrefillSimtConfig<128, 64, 64, 2, true>;  // 113 KiB
using PrefillSimtHd128Small = PrefillSimtConfig<128, 32, 32, 3>;        // 52 KiB
using PrefillSimtHd256 = PrefillSimtConfig<256, 32, 32, 2>;             // 100 KiB
using PrefillSimtHd256Small = PrefillSimtConfig<256, 16, 16, 3>;        // 49 KiB

// attention_decode_simt: a warp reads keys and values straight into registers.
template <DType kDType, int kHeadDimMax, int kRowsMax>
struct DecodeSimtConfig {
  static constexpr int kHeadDim = kHeadDimMax;                    // head_dim and head_dim_v up to this
  static constexpr int kRows = kRowsMax;                          // query rows of a kv head that a thread block serves
  static constexpr int kVec = kDType == DType::kFloat32 ? 4 : 8;  // elements of a 16-byte load
  static constexpr int kLanes = kHeadDim / kVec < 32 ? kHeadDim / kVec : 32;  // that share a key
  static constexpr int kChunks = kHeadDim / (kVec * kLanes);                  // loads of a lane per key
  static constexpr int kWarps = kRows == 1 && kChunks == 1 ? 8 : 4, kThreads = 32 * kWarps;
  static constexpr int kMinBlocks = kWarps == 8 || kChunks > 1 ? 2 : 3;  // per SM, which bounds the registers
  static constexpr int kGroups = 32 / kLanes;                            // keys side by side in a warp
  static constexpr int kKeys = (kRows == 1 ? 8 : 4) / kChunks;           // keys of a group at a time
  static constexpr int kTileKeys = kGroups * kKeys;                      // of a warp
  static constexpr int kElements = kVec * kChunks;                       // of a row in a lane
  static constexpr int kBytesInFlight = kWarps * kTileKeys * 2 * kHeadDim * (16 / kVec);
};

}  // namespace dlattn::cuda
