#include "cuda/kernel_table.h"

#include "cuda/device.h"
#include "cuda/launch_plan.h"
#include "cuda/select.h"
#include "cuda/simt/launch_simt.h"

namespace dlattn::cuda {
namespace {

template <class Config>
KernelRow prefill_simt(const char* name, double fma_rate) {
  return {name,
          Family::kSimt,
          Phase::kPrefill,
          /*float32=*/Config::kFloat32,
          /*float16=*/!Config::kFloat32,
          /*bfloat16=*/!Config::kFloat32,
          Config::kHeadDim,
          Config::kTileQ,
          Config::kSharedBytes,
          Config::kMinBlocks,
          fma_rate,
          /*bytes_in_flight=*/0,
          launch_prefill_simt<Config>};
}

template <DType kDType, int kHeadDim, int kRows>
KernelRow decode_simt(const char* name) {
  using Config = DecodeSimtConfig<kDType, kHeadDim, kRows>;
  return {name,
          Family::kSimt,
          Phase::kDecode,
          kDType == DType::kFloat32,
          kDType == DType::kFloat16,
          kDType == DType::kBFloat16,
          kHeadDim,
          kRows,
          /*shared_bytes=*/0,
          Config::kMinBlocks,
          /*fma_rate=*/0.3,
          Config::kBytesInFlight,
          launch_decode_simt<kDType, kHeadDim, kRows>};
}

std::vector<KernelRow> make_table() {
  constexpr DType kF32 = DType::kFloat32, kF16 = DType::kFloat16, kBf16 = DType::kBFloat16;
  return {
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
  return static_cast<size_t>(Partials::bytes(tiles.num_slots * p.num_kv_heads, plan, row.tile_rows, p.head_dim_v));
}

}  // namespace dlattn::cuda
