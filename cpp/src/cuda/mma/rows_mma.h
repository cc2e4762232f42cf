// Rows of the kernel table for the mma kernels. Which there are: cmake/KernelInstances.cmake.
#pragma once

#include <vector>

#include "cuda/kernel_table.h"
#include "cuda/mma/config_decode_mma.h"
#include "cuda/mma/config_prefill_mma.h"
#include "cuda/mma/launch_mma.h"

namespace dlattn::cuda {

// TFLOP/s of the measured rate over those of the float32 units: docs/kernels/mma.md.
constexpr double prefill_mma_rate(int head_dim, PrefillKind kind) {
  if (kind == PrefillKind::kOptions) return head_dim == 64 ? 3.5 : head_dim == 128 ? 3.4 : 3.8;
  if (kind == PrefillKind::kSmall) return 4.5;
  return head_dim == 64 ? 4.8 : head_dim == 96 ? 5.7 : head_dim == 128 ? 5.9 : head_dim == 192 ? 4.9 : 5.1;
}

// What the rows have in common.
template <DType kDType, class Config>
KernelRow mma_row(const char* name, Phase phase, int tile_rows) {
  KernelRow row;
  row.name = name;
  row.family = Family::kMma;
  row.phase = phase;
  row.float16 = kDType == DType::kFloat16;
  row.bfloat16 = kDType == DType::kBFloat16;
  row.aligned_only = true;
  row.max_head_dim = Config::kHeadDim;
  row.tile_rows = tile_rows;
  row.shared_bytes = Config::kSharedBytes;
  row.blocks_per_sm = Config::kMinBlocks;
  row.bytes_in_flight = Config::kBytesInFlight;
  return row;
}

template <DType kDType, int kHeadDim, PrefillKind kKind>
KernelRow prefill_mma_row(const char* name) {
  using Config = PrefillMmaConfig<kHeadDim, kKind>;
  KernelRow row = mma_row<kDType, Config>(name, Phase::kPrefill, Config::kTileQ);
  row.score_options = row.softcap = kKind == PrefillKind::kOptions;
  row.fma_rate = prefill_mma_rate(kHeadDim, kKind);
  row.launch = launch_prefill_mma<kDType, kHeadDim, kKind>;
  return row;
}

template <DType kDType, int kHeadDim>
KernelRow decode_mma_row(const char* name) {
  using Config = DecodeMmaConfig<kHeadDim>;
  KernelRow row = mma_row<kDType, Config>(name, Phase::kDecode, Config::kRows);
  row.fma_rate = 1.5;  // does not limit it
  row.launch = launch_decode_mma<kDType, kHeadDim>;
  return row;
}

// Generated.
void add_mma_rows(std::vector<KernelRow>* table);

}  // namespace dlattn::cuda
