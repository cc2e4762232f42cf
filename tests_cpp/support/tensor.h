// A tensor of a test: strided, between guard bytes, with NaN (0xFF bytes) wherever no element lives.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "dlattn/tensor_view.h"
#include "support/dtypes.h"

namespace dlattn::test {

// How the elements lie in memory.
enum class Storage {
  kContiguous,
  kSwapped,  // the second and third axes exchanged: a transposed view
  kPadded,   // gaps after every axis: a slice of something larger
  kSpaced,   // as kPadded, but the gaps keep rows of whole 16 bytes on multiples of 16 bytes
  kShifted,  // as kPadded, and the first element stands one element past a multiple of 64 bytes
};

inline const char* storage_name(Storage storage) {
  const char* names[] = {"contiguous", "swapped", "padded", "spaced", "shifted"};
  return names[static_cast<int>(storage)];
}

class Tensor {
 public:
  Tensor() = default;

  Tensor(DType dtype, std::vector<int64_t> shape, Storage storage = Storage::kContiguous)
      : dtype_(dtype),
        shape_(std::move(shape)),
        strides_(shape_.size()),
        front_(kGuard + (storage == Storage::kShifted ? item_size(dtype) : 0)) {
    const int n = static_cast<int>(shape_.size());
    std::vector<int> order(shape_.size());
    for (int i = 0; i < n; ++i) order[static_cast<size_t>(i)] = i;
    if (storage == Storage::kSwapped && n >= 3)
      std::swap(order[static_cast<size_t>(n - 3)], order[static_cast<size_t>(n - 2)]);
    int64_t step = 1;
    for (int i = n - 1; i >= 0; --i) {
      const auto axis = static_cast<size_t>(order[static_cast<size_t>(i)]);
      strides_[axis] = step;
      step *= std::max<int64_t>(shape_[axis], 1);
      if (storage == Storage::kPadded || storage == Storage::kShifted) step += 3;
      if (storage == Storage::kSpaced) step += 8;
    }
    bytes_.assign(static_cast<size_t>(front_ + step * item_size(dtype) + kGuard), 0xFF);
  }

  DType dtype() const { return dtype_; }
  const std::vector<int64_t>& shape() const { return shape_; }
  int64_t size(int axis) const { return shape_[static_cast<size_t>(axis)]; }
  int64_t stride(int axis) const { return strides_[static_cast<size_t>(axis)]; }
  void* data() { return bytes_.data() + front_; }
  const void* data() const { return bytes_.data() + front_; }
  const std::vector<unsigned char>& bytes() const { return bytes_; }
  void restore(const std::vector<unsigned char>& bytes) { bytes_ = bytes; }

  template <typename... Index>
  double at(Index... index) const {
    return load(dtype_, address(index...));
  }
  template <typename... Index>
  void set(double value, Index... index) {
    store(dtype_, value, const_cast<unsigned char*>(address(index...)));
  }

  // Visits every element's address.
  template <typename F>
  void each(F&& visit) {
    std::vector<int64_t> index(shape_.size(), 0);
    if (std::find(shape_.begin(), shape_.end(), 0) != shape_.end()) return;
    for (;;) {
      int64_t offset = 0;
      for (size_t i = 0; i < index.size(); ++i) offset += index[i] * strides_[i];
      visit(bytes_.data() + front_ + offset * item_size(dtype_));
      size_t axis = index.size();
      while (axis > 0 && ++index[axis - 1] == shape_[axis - 1]) index[--axis] = 0;
      if (axis == 0) return;
    }
  }

  void fill(double value) {
    each([&](unsigned char* at) { store(dtype_, value, at); });
  }
  void fill_random(std::mt19937& random, double low = -1.5, double high = 1.5) {
    std::uniform_real_distribution<double> uniform(low, high);
    int64_t count = 1;
    for (int64_t n : shape_) count *= n;
    constexpr int64_t kPool = 1 << 14;  // encoding takes time: a large tensor draws from this many values
    if (count < 4 * kPool) return each([&](unsigned char* at) { store(dtype_, uniform(random), at); });
    Tensor pool(dtype_, {kPool});
    pool.each([&](unsigned char* at) { store(dtype_, uniform(random), at); });
    const auto item = static_cast<size_t>(item_size(dtype_));
    const auto* values = static_cast<const unsigned char*>(pool.data());
    each([&](unsigned char* at) { std::memcpy(at, values + random() % kPool * item, item); });
  }

  std::vector<double> values() {
    std::vector<double> all;
    each([&](unsigned char* at) { all.push_back(load(dtype_, at)); });
    return all;
  }

  // The same values in float32, contiguous; other than 16-bit floating types stay as they are.
  Tensor as_float32() {
    if (dtype_ != DType::kFloat16 && dtype_ != DType::kBFloat16) return *this;
    Tensor wide(DType::kFloat32, shape_);
    const std::vector<double> from = values();
    auto next = from.begin();
    wide.each([&](unsigned char* at) { store(DType::kFloat32, *next++, at); });
    return wide;
  }

  // Nothing but elements was written.
  void expect_gaps_untouched(const char* name) {
    std::vector<bool> element(bytes_.size(), false);
    each([&](unsigned char* at) {
      for (int64_t i = 0; i < item_size(dtype_); ++i) element[static_cast<size_t>(at - bytes_.data() + i)] = true;
    });
    for (size_t i = 0; i < bytes_.size(); ++i) {
      if (!element[i] && bytes_[i] != 0xFF) {
        ADD_FAILURE() << name << ": byte " << static_cast<int64_t>(i) - front_ << " outside the elements was written";
        return;
      }
    }
  }

  // The tensor as the library sees it, with axes in the given order (all of them, if not given).
  TensorView view(const std::vector<int>& axes = {}) {
    TensorView v;
    v.data = data();
    v.dtype = dtype_;
    v.ndim = static_cast<int32_t>(shape_.size());
    for (int i = 0; i < v.ndim; ++i) {
      const auto axis = static_cast<size_t>(axes.empty() ? i : axes[static_cast<size_t>(i)]);
      v.shape[i] = shape_[axis];
      v.strides[i] = strides_[axis];
    }
    return v;
  }

 private:
  static constexpr int64_t kGuard = 64;

  template <typename... Index>
  const unsigned char* address(Index... index) const {
    int64_t offset = 0;
    size_t axis = 0;
    ((offset += static_cast<int64_t>(index) * strides_[axis++]), ...);
    return bytes_.data() + front_ + offset * item_size(dtype_);
  }

  DType dtype_ = DType::kFloat32;
  std::vector<int64_t> shape_, strides_;
  int64_t front_ = kGuard;  // bytes before the first element
  std::vector<unsigned char> bytes_;
};

// The bytes of all of them.
inline std::vector<unsigned char> bytes_of(const std::vector<Tensor*>& tensors) {
  std::vector<unsigned char> bytes;
  for (const Tensor* t : tensors) bytes.insert(bytes.end(), t->bytes().begin(), t->bytes().end());
  return bytes;
}

// An index array of the given entries.
inline Tensor index_tensor(DType dtype, const std::vector<int64_t>& values) {
  Tensor tensor(dtype, {static_cast<int64_t>(values.size())});
  for (size_t i = 0; i < values.size(); ++i) tensor.set(static_cast<double>(values[i]), i);
  return tensor;
}

}  // namespace dlattn::test
