#include "core/tensor_check.h"

namespace dlattn::core {

IndexArray TensorCheck::index_vector(const char* name, const TensorView& tensor, int64_t size, const char* why,
                                     Device want) const {
  ndim(name, tensor, 1, "of one axis");
  index_dtype(name, tensor);
  device(name, tensor, want, "q.device");
  axis(name, "shape[0]", tensor.shape[0], size, why);
  last_stride(name, tensor);
  memory(name, tensor);
  return {tensor.data, tensor.dtype};
}

FloatArray TensorCheck::per_head(const char* name, const TensorView& tensor, int64_t num_heads, Device want) const {
  float_dtype(name, tensor);
  device(name, tensor, want, "q.device");
  axis(name, "num_heads", tensor.shape[tensor.ndim - 1], num_heads, "q.num_heads");
  last_stride(name, tensor);
  memory(name, tensor);
  return {tensor.data, tensor.dtype};
}

void TensorCheck::fail_ndim(const char* name, const TensorView& tensor, const std::string& want,
                            const char* shape) const {
  check_.fail(join(name, "ndim"), std::to_string(tensor.ndim), want, shape);
}

HeadsView heads_view(const TensorView& t, Layout layout) {
  if (t.ndim == 3) return {1, t.shape[0], t.shape[1], t.shape[2], 0, t.strides[0], t.strides[1]};
  if (layout == Layout::kBLHD) {
    return {t.shape[0], t.shape[1], t.shape[2], t.shape[3], t.strides[0], t.strides[1], t.strides[2]};
  }
  return {t.shape[0], t.shape[2], t.shape[1], t.shape[3], t.strides[0], t.strides[2], t.strides[1]};
}

HeadsView contiguous_heads(int64_t batch, int64_t seq, int64_t heads, int64_t dim, Layout layout, bool packed) {
  const bool seq_first = packed || layout == Layout::kBLHD;
  return {batch,
          seq,
          heads,
          dim,
          packed ? 0 : seq * heads * dim,
          seq_first ? heads * dim : dim,
          seq_first ? dim : seq * dim};
}

const char* heads_shape(Layout layout, bool packed) {
  if (packed) return "[tokens, heads, dim]";
  return layout == Layout::kBLHD ? "[batch, len, heads, dim]" : "[batch, heads, len, dim]";
}

}  // namespace dlattn::core
