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
          /*float32=*/true,
          /*float16=*/!Config::kPlain,
          /*bfloat16=*/!Config::kPlain,
          Config::kPlain,
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
          /*plain=*/false,
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
      prefill_simt<PrefillSimtHd64>("attention_prefill_simt_hd64", 0.48),
      prefill_simt<PrefillSimtHd128>("attention_prefill_simt_hd128", 0.58),
      prefill_simt<PrefillSimtHd128Plain>("attention_prefill_simt_hd128_plain", 0.61),
      prefill_simt<PrefillSimtHd128Small>("attention_prefill_simt_hd128_small", 0.43),
      prefill_simt<PrefillSimtHd256>("attention_prefill_simt_hd256", 0.41),
      prefill_simt<PrefillSimtHd256Small>("attention_prefill_simt_hd256_small", 0.27),
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
