#include "cuda/wgmma/tensor_map.h"

#include <string>

#include "cuda/driver_function.h"

namespace dlattn::cuda {
namespace {

// For messages: "a bfloat16 tensor at 0x7f00, head_dim 128, seq 10 by 1024, head 8 by 128, batch 1 by 0, boxes of 64 rows".
std::string text_of(DType dtype, const void* base, int64_t head_dim, const TensorMapAxes& axes, int box_rows) {
  const auto text = [](TensorMapAxis axis) { return std::to_string(axis.size) + " by " + std::to_string(axis.stride); };
  return std::string("a ") + name_of(dtype) + " tensor at " + std::to_string(reinterpret_cast<uintptr_t>(base)) +
         ", head_dim " + std::to_string(head_dim) + ", seq " + text(axes.seq) + ", head " + text(axes.head) +
         ", batch " + text(axes.batch) + ", boxes of " + std::to_string(box_rows) + " rows";
}

}  // namespace

CUtensorMap tensor_map(DType dtype, const void* base, int64_t head_dim, TensorMapAxis seq, TensorMapAxis head,
                       TensorMapAxis batch, int box_rows) {
  const TensorMapAxes axes{seq, head, batch};
  const bool is_half = dtype == DType::kFloat16 || dtype == DType::kBFloat16;
  if (base == nullptr || !is_half || box_rows < 1 || box_rows > 256 || !tensor_map_fits(dtype, base, head_dim, axes)) {
    throw CudaError("TMA cannot express " + text_of(dtype, base, head_dim, axes, box_rows));
  }
  static const auto encode = driver_function<decltype(&cuTensorMapEncodeTiled)>("cuTensorMapEncodeTiled");
  const auto stride = [&](TensorMapAxis axis) {
    return static_cast<cuuint64_t>(axis.size == 1 ? kTensorMapPiece : axis.stride * size_of(dtype));
  };
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(head_dim), static_cast<cuuint64_t>(seq.size),
                              static_cast<cuuint64_t>(head.size), static_cast<cuuint64_t>(batch.size)};
  const cuuint64_t strides[] = {stride(seq), stride(head), stride(batch)};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(kTensorMapBoxColumns), static_cast<cuuint32_t>(box_rows), 1, 1};
  const cuuint32_t steps[] = {1, 1, 1, 1};
  CUtensorMap map;
  const CUresult error =
      encode(&map, dtype == DType::kFloat16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4,
             const_cast<void*>(base), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
             CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (error != CUDA_SUCCESS) {
    const std::string what = "cuTensorMapEncodeTiled of " + text_of(dtype, base, head_dim, axes, box_rows);
    fail(static_cast<cudaError_t>(error), what.c_str());
  }
  return map;
}

}  // namespace dlattn::cuda
