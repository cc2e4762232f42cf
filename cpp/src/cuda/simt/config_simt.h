// Tiles of the simt kernels. Host and device see the same numbers.
#pragma once

#include "dlattn/params.h"

namespace dlattn::cuda {

// attention_prefill_simt: a tile of queries walks over tiles of keys; 16 threads share a row. Code for 16-bit dtypes in a float32
// kernel costs it 2 % (docs/kernels/simt.md), so they have their own.
template <bool kIsFloat32, int kHeadDimMax, int kRows, int kKeys, int kPart, int kNumThreads, int kBlocks>
struct PrefillSimtConfig {
  static constexpr bool kFloat32 = kIsFloat32;  // else float16 and bfloat16
  static constexpr int kHeadDim = kHeadDimMax;  // head_dim and head_dim_v up to this
  static constexpr int kTileQ = kRows, kTileKV = kKeys;
  static constexpr int kMinBlocks = kBlocks;  // per SM, which bounds the registers
  static constexpr int kThreads = kNumThreads, kThreadsX = 16, kThreadsY = kThreads / kThreadsX;
  static constexpr int kCopyThreads = 128;
  static constexpr int kRowsPerThread = kTileQ / kThreadsY, kKeysPerThread = kTileKV / kThreadsX;
  static constexpr int kColumnsPerThread = kHeadDim / kThreadsX;
  // What is copied at a time: kPartColumns columns of all keys of the tile, or all columns of kPartKeys values.
  static constexpr int kPartColumns = kPart, kPartFloats = kTileKV * kPartColumns, kPartKeys = kPartFloats / kHeadDim;
  static constexpr int kParts = kHeadDim / kPartColumns;       // of k, of v
  static constexpr int kUnroll = kKeysPerThread >= 8 ? 1 : 2;  // steps of four columns or keys
  // q, probabilities, two parts; where the rows of paged keys lie
  static constexpr int kSharedBytes = 4 * (kHeadDim * kTileQ + kTileQ * kTileKV + 2 * kPartFloats) + 8 * kTileKV;
};

// An SM of an H100 has 228 KiB of shared memory, of which a thread block can have 227. The small ones fit 64 KiB (sm_75).
template <bool kFloat32>
using PrefillSimtHd64 = PrefillSimtConfig<kFloat32, 64, 64, 128, 64, 128, 2>;  // 113 KiB
template <bool kFloat32>
using PrefillSimtHd64Small = PrefillSimtConfig<kFloat32, 64, 64, 64, 32, 128, 3>;  // 48.5 KiB
template <bool kFloat32>
using PrefillSimtHd128 = PrefillSimtConfig<kFloat32, 128, 128, 128, 64, 256, 1>;  // 193 KiB
template <bool kFloat32>
using PrefillSimtHd128Small = PrefillSimtConfig<kFloat32, 128, 32, 64, 32, 128, 4>;  // 40.5 KiB
template <bool kFloat32>
using PrefillSimtHd256 = PrefillSimtConfig<kFloat32, 256, 32, 128, 64, 128, 2>;  // 113 KiB
template <bool kFloat32>
using PrefillSimtHd256Small = PrefillSimtConfig<kFloat32, 256, 16, 64, 32, 128, 4>;  // 36.5 KiB

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
