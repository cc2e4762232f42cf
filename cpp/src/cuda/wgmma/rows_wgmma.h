// Rows of the kernel table for the wgmma kernels. Which there are: cmake/KernelInstances.cmake.
#pragma once

#include <vector>

#include "cuda/kernel_table.h"
#include "cuda/wgmma/config_prefill_wgmma.h"
#include "cuda/wgmma/launch_wgmma.h"

namespace dlattn::cuda {

// TFLOP/s of long sequences over the 60 of the float32 units: docs/kernels/prefill-wgmma.md.
constexpr double prefill_wgmma_rate(int head_dim, PrefillWgmmaKind kind) {
  if (kind == PrefillWgmmaKind::kSmall) return 7.2;
  const double plain = head_dim == 64 ? 8.6 : head_dim == 256 ? 13.4 : 12.2;
  return kind == PrefillWgmmaKind::kSoftcap ? 0.75 * plain : plain;  // of softcap: a guess
}

template <DType kDType, int kHeadDim, PrefillWgmmaKind kKind>
KernelRow prefill_wgmma_row(const char* name) {
  using Config = PrefillWgmmaConfig<kHeadDim, kKind>;
  KernelRow row;
  row.name = name;
  row.family = Family::kWgmma;
  row.float16 = kDType == DType::kFloat16;
  row.bfloat16 = kDType == DType::kBFloat16;
  row.aligned_only = true;
  row.score_options = false;
  row.softcap = kKind == PrefillWgmmaKind::kSoftcap;
  row.max_head_dim = Config::kHeadDim;
  row.tile_rows = Config::kTileQ;
  row.key_tile = Config::kTileKV;
  row.shared_bytes = Config::kSharedBytes;
  row.blocks_per_sm = Config::kBlocks;
  row.fma_rate = prefill_wgmma_rate(kHeadDim, kKind);
  row.launch = launch_prefill_wgmma<kDType, kHeadDim, kKind>;
  return row;
}

// Generated.
void add_wgmma_rows(std::vector<KernelRow>* table);

}  // namespace dlattn::cuda
