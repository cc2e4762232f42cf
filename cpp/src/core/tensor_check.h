// Checks of a TensorView against what an operation expects of it.
#pragma once

#include <cstdint>
#include <string>

#include "core/check.h"
#include "dlattn/tensor_view.h"

namespace dlattn::core {

// Property names of the axes as messages show them: "k.head_dim".
class TensorCheck {
 public:
  explicit TensorCheck(const char* op) : check_(op) {}

  const Check& check() const { return check_; }

  void given(const char* name, const TensorView& tensor, const char* shape) const {
    if (!tensor.given()) check_.fail(name, "missing", std::string("an array ") + shape);
  }
  void ndim(const char* name, const TensorView& tensor, int want, const char* shape) const {
    given(name, tensor, shape);
    if (tensor.ndim != want) fail_ndim(name, tensor, std::to_string(want), shape);
  }
  void axis(const char* name, const char* property, int64_t got, int64_t want, const char* why) const {
    if (got != want) check_.fail(join(name, property), std::to_string(got), std::to_string(want), why);
  }
  void same_dtype(const char* name, const TensorView& tensor, DType want, const char* why) const {
    if (tensor.dtype != want) check_.fail(join(name, "dtype"), name_of(tensor.dtype), name_of(want), why);
  }
  void float_dtype(const char* name, const TensorView& tensor) const {
    if (!is_float(tensor.dtype)) {
      check_.fail(join(name, "dtype"), name_of(tensor.dtype), "float32, float16 or bfloat16");
    }
  }
  void index_dtype(const char* name, const TensorView& tensor) const {
    if (!is_index(tensor.dtype)) check_.fail(join(name, "dtype"), name_of(tensor.dtype), "int32 or int64");
  }
  void device(const char* name, const TensorView& tensor, Device want, const char* why) const {
    if (tensor.device.type != want.type || tensor.device.index != want.index) {
      check_.fail(join(name, "device"), name_of(tensor.device), name_of(want), why);
    }
  }
  // The last axis is contiguous, unless it has one element or the tensor none.
  void last_stride(const char* name, const TensorView& tensor) const {
    const int last = tensor.ndim - 1;
    if (last < 0 || tensor.strides[last] == 1 || tensor.shape[last] == 1 || tensor.numel() == 0) return;
    check_.fail(std::string(name) + ".strides[" + std::to_string(last) + "]", std::to_string(tensor.strides[last]), "1",
                "a contiguous last axis");
  }
  // A tensor with elements has memory; written ones may be written.
  void memory(const char* name, const TensorView& tensor, bool written = false) const {
    if (written && tensor.read_only) check_.fail(name, "read-only", "a writable array");
    if (tensor.data == nullptr && tensor.numel() != 0) {
      check_.fail(join(name, "data"), "null", "a pointer to its elements");
    }
  }

  // A contiguous 1-D array of `size` index entries; what the parameters hold of it.
  IndexArray index_vector(const char* name, const TensorView& tensor, int64_t size, const char* why, Device want) const;
  // [num_heads], contiguous; its leading axes are the caller's.
  FloatArray per_head(const char* name, const TensorView& tensor, int64_t num_heads, Device want) const;

 private:
  static std::string join(const char* name, const char* property) { return std::string(name) + "." + property; }
  [[noreturn]] void fail_ndim(const char* name, const TensorView& tensor, const std::string& want,
                              const char* shape) const;

  Check check_;
};

// A tensor of heads seen as [batch, seq, head, dim], whatever its layout; packed tokens are batch 1.
struct HeadsView {
  int64_t batch, seq, heads, dim;
  int64_t stride_batch, stride_seq, stride_head;
};

HeadsView heads_view(const TensorView& tensor, Layout layout);  // ndim 3 or 4

// Strides of a contiguous result [batch, seq, heads, dim] in that layout (packed: [seq, heads, dim]).
HeadsView contiguous_heads(int64_t batch, int64_t seq, int64_t heads, int64_t dim, Layout layout, bool packed);

const char* heads_shape(Layout layout, bool packed);  // "[batch, len, heads, dim]"

}  // namespace dlattn::core
