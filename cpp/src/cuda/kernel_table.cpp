#include "cuda/kernel_table.h"

#include <algorithm>

#include "cuda/device.h"
#include "cuda/launch_plan.h"
#include "cuda/mma/rows_mma.h"
#include "cuda/select.h"
#include "cuda/simt/launch_simt.h"
#include "cuda/wgmma/rows_wgmma.h"

namespace dlattn::cuda {
namespace {

template <class Config>
KernelRow prefill_simt(const char* name, double fma_rate) {
  KernelRow row;
  row.name = name;
  row.float32 = Config::kFloat32;
  row.float16 = row.bfloat16 = !Config::kFloat32;
  row.max_head_dim = Config::kHeadDim;
  row.tile_rows = Config::kTileQ;
  row.shared_bytes = Config::kSharedBytes;
  row.blocks_per_sm = Config::kMinBlocks;
  row.fma_rate = fma_rate;
  row.launch = launch_prefill_simt<Config>;
  return row;
}

template <DType kDType, int kHeadDim, int kRows>
KernelRow decode_simt(const char* name) {
  using Config = DecodeSimtConfig<kDType, kHeadDim, kRows>;
  KernelRow row;
  row.name = name;
  row.phase = Phase::kDecode;
  row.float32 = kDType == DType::kFloat32;
  row.float16 = kDType == DType::kFloat16;
  row.bfloat16 = kDType == DType::kBFloat16;
  row.max_head_dim = kHeadDim;
  row.tile_rows = kRows;
  row.blocks_per_sm = Config::kMinBlocks;
  row.fma_rate = 0.3;
  row.bytes_in_flight = Config::kBytesInFlight;
  row.launch = launch_decode_simt<kDType, kHeadDim, kRows>;
  return row;
}

std::vector<KernelRow> make_table() {
  constexpr DType kF32 = DType::kFloat32, kF16 = DType::kFloat16, kBf16 = DType::kBFloat16;
  std::vector<KernelRow> table = {
      prefill_simt<PrefillSimtHd64<true>>("attention_prefill_simt_f32_hd64", 0.64),
      prefill_simt<PrefillSimtHd64Small<true>>("attention_prefill_simt_f32_hd64_small", 0.56),
      prefill_simt<PrefillSimtHd128<true>>("attention_prefill_simt_f32_hd128", 0.67),
      prefill_simt<PrefillSimtHd128Small<true>>("attention_prefill_simt_f32_hd128_small", 0.54),
      prefill_simt<PrefillSimtHd256<true>>("attention_prefill_simt_f32_hd256", 0.6),
      prefill_simt<PrefillSimtHd256Small<true>>("attention_prefill_simt_f32_hd256_small", 0.43),
      prefill_simt<PrefillSimtHd64<false>>("attention_prefill_simt_16bit_hd64", 0.5),
      prefill_simt<PrefillSimtHd64Small<false>>("attention_prefill_simt_16bit_hd64_small", 0.5),
      prefill_simt<PrefillSimtHd128<false>>("attention_prefill_simt_16bit_hd128", 0.58),
      prefill_simt<PrefillSimtHd128Small<false>>("attention_prefill_simt_16bit_hd128_small", 0.47),
      prefill_simt<PrefillSimtHd256<false>>("attention_prefill_simt_16bit_hd256", 0.4),
      prefill_simt<PrefillSimtHd256Small<false>>("attention_prefill_simt_16bit_hd256_small", 0.32),
      decode_simt<kF32, 64, 1>("attention_decode_simt_f32_hd64_rows1"),
      decode_simt<kF32, 64, 4>("attention_decode_simt_f32_hd64_rows4"),
      decode_simt<kF32, 128, 1>("attention_decode_simt_f32_hd128_rows1"),
      decode_simt<kF32, 128, 4>("attention_decode_simt_f32_hd128_rows4"),
      decode_simt<kF32, 256, 1>("attention_decode_simt_f32_hd256_rows1"),
      decode_simt<kF32, 256, 4>("attention_decode_simt_f32_hd256_rows4"),
      decode_simt<kF16, 64, 1>("attention_decode_simt_f16_hd64_rows1"),
      decode_simt<kF16, 64, 4>("attention_decode_simt_f16_hd64_rows4"),
      decode_simt<kF16, 128, 1>("attention_decode_simt_f16_hd128_rows1"),
      decode_simt<kF16, 128, 4>("attention_decode_simt_f16_hd128_rows4"),
      decode_simt<kF16, 256, 1>("attention_decode_simt_f16_hd256_rows1"),
      decode_simt<kF16, 256, 4>("attention_decode_simt_f16_hd256_rows4"),
      decode_simt<kBf16, 64, 1>("attention_decode_simt_bf16_hd64_rows1"),
      decode_simt<kBf16, 64, 4>("attention_decode_simt_bf16_hd64_rows4"),
      decode_simt<kBf16, 128, 1>("attention_decode_simt_bf16_hd128_rows1"),
      decode_simt<kBf16, 128, 4>("attention_decode_simt_bf16_hd128_rows4"),
      decode_simt<kBf16, 256, 1>("attention_decode_simt_bf16_hd256_rows1"),
      decode_simt<kBf16, 256, 4>("attention_decode_simt_bf16_hd256_rows4"),
  };
  add_mma_rows(&table);
  add_wgmma_rows(&table);
  return table;
}

}  // namespace

const std::vector<KernelRow>& kernel_table() {
  static const std::vector<KernelRow> table = make_table();
  return table;
}

size_t workspace_size(const KernelRow& row, const AttentionProblem& p, const DeviceCaps& caps) {
  if (p.is_empty()) return 0;
  const RowTiles tiles = row_tiles(row, p);
  const SplitPlan plan = split_plan(row, p, tiles, caps);
  const bool wgmma = row.family == Family::kWgmma;
  const int64_t heads = wgmma ? p.num_heads : p.num_kv_heads;
  const auto bytes = static_cast<size_t>(Partials::bytes(tiles.num_slots * heads, plan, row.tile_rows, p.head_dim_v));
  const bool counts = wgmma && WorkOrderWgmma(p, tiles, std::max(caps.num_sms, 1) * row.blocks_per_sm).counted;
  return counts ? std::max(bytes, WorkOrderWgmma::kCounterBytes) : bytes;
}

}  // namespace dlattn::cuda
