// Memory on the device, and device copies of test tensors.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <vector>

#include "cuda/check.h"
#include "dlattn/params.h"
#include "support/tensor.h"

namespace dlattn::test {

class DeviceStream {
 public:
  DeviceStream() {
    cuda::check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  }
  DeviceStream(const DeviceStream&) = delete;
  DeviceStream& operator=(const DeviceStream&) = delete;
  ~DeviceStream() { cudaStreamDestroy(stream_); }

  operator cudaStream_t() const { return stream_; }
  void wait() const { cuda::check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

 private:
  cudaStream_t stream_ = nullptr;
};

class DeviceBuffer {
 public:
  explicit DeviceBuffer(size_t bytes) : bytes_(bytes) {
    if (bytes > 0) cuda::check(cudaMalloc(&data_, bytes), "cudaMalloc");
  }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  ~DeviceBuffer() { cudaFree(data_); }

  unsigned char* data() const { return static_cast<unsigned char*>(data_); }
  size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  size_t bytes_;
};

// A workspace between guard bytes, filled with garbage.
class Workspace {
 public:
  Workspace(size_t bytes, cudaStream_t stream) : bytes_(bytes), memory_(bytes + 2 * kGuard), stream_(stream) {
    poison(0xFF);
  }

  void* data() const { return bytes_ > 0 ? memory_.data() + kGuard : nullptr; }
  size_t bytes() const { return bytes_; }

  void poison(int byte) {
    cuda::check(cudaMemsetAsync(memory_.data(), 0xFF, memory_.bytes(), stream_), "cudaMemsetAsync");
    cuda::check(cudaMemsetAsync(memory_.data() + kGuard, byte, bytes_, stream_), "cudaMemsetAsync");
  }

  void expect_guards_untouched() const {
    std::vector<unsigned char> guards(2 * kGuard);
    const auto copy = [&](unsigned char* to, const unsigned char* from) {
      cuda::check(cudaMemcpyAsync(to, from, kGuard, cudaMemcpyDeviceToHost, stream_), "cudaMemcpyAsync");
    };
    copy(guards.data(), memory_.data());
    copy(guards.data() + kGuard, memory_.data() + kGuard + bytes_);
    cuda::check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    EXPECT_TRUE(std::all_of(guards.begin(), guards.end(), [](unsigned char byte) { return byte == 0xFF; }))
        << "bytes around the workspace of " << bytes_ << " were written";
  }

 private:
  static constexpr size_t kGuard = 256;
  size_t bytes_;
  DeviceBuffer memory_;
  cudaStream_t stream_;
};

// Copies of tensors, guards and gaps included, and parameters that point to them. The tensors must outlive this.
class DeviceTensors {
 public:
  DeviceTensors(const std::vector<Tensor*>& tensors, cudaStream_t stream) : stream_(stream) {
    for (Tensor* t : tensors) {
      if (!t->bytes().empty()) copies_.emplace_back(t);
    }
    for (const Copy& copy : copies_) upload(*copy.tensor);
  }

  // Returns when the bytes are on the device, so that the tensor may change at once.
  void upload(const Tensor& tensor) {
    const Copy& copy = copy_of(tensor.data());
    cuda::check(cudaMemcpyAsync(copy.memory.data(), tensor.bytes().data(), tensor.bytes().size(),
                                cudaMemcpyHostToDevice, stream_),
                "cudaMemcpyAsync");
    cuda::check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  }
  void upload(const std::vector<Tensor*>& tensors) {
    for (const Tensor* t : tensors) upload(*t);
  }

  void download(Tensor& tensor) {
    const Copy& copy = copy_of(tensor.data());
    std::vector<unsigned char> bytes(tensor.bytes().size());
    cuda::check(cudaMemcpyAsync(bytes.data(), copy.memory.data(), bytes.size(), cudaMemcpyDeviceToHost, stream_),
                "cudaMemcpyAsync");
    cuda::check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    tensor.restore(bytes);
  }
  void download(const std::vector<Tensor*>& tensors) {
    for (Tensor* t : tensors) download(*t);
  }

  AttentionParams on_device(AttentionParams p) const {
    move(p, p.q, p.k, p.v, p.out, p.lse, p.seqlens_k.data);
    move_options(p.options);
    return p;
  }
  VarlenAttentionParams on_device(VarlenAttentionParams p) const {
    move(p, p.q, p.k, p.v, p.out, p.lse, p.cu_seqlens_q.data, p.cu_seqlens_k.data);
    move_options(p.options);
    return p;
  }
  PagedAttentionParams on_device(PagedAttentionParams p) const {
    move(p, p.q, p.k_cache, p.v_cache, p.out, p.lse, p.page_table.data, p.seqlens_k.data, p.cu_seqlens_q.data);
    move_options(p.options);
    return p;
  }
  RotaryParams on_device(RotaryParams p) const {
    move(p, p.q, p.k, p.q_out, p.k_out, p.cos, p.sin, p.positions.data);
    return p;
  }
  AppendKVParams on_device(AppendKVParams p) const {
    move(p, p.k, p.v, p.k_cache, p.v_cache, p.slot_mapping.data);
    return p;
  }
  RotaryAppendKVParams on_device(RotaryAppendKVParams p) const { return {on_device(p.rotary), on_device(p.append)}; }
  // The states are kept here.
  MergeParams on_device(MergeParams p) {
    move(p, p.out, p.lse);
    states_.assign(p.states, p.states + p.num_states);
    for (AttentionState& state : states_) move(p, state.out, state.lse);
    p.states = states_.data();
    return p;
  }

 private:
  struct Copy {
    explicit Copy(Tensor* t) : tensor(t), memory(t->bytes().size()) {}
    Tensor* tensor;
    DeviceBuffer memory;
  };

  const Copy& copy_of(const void* host) const {
    const auto at = reinterpret_cast<uintptr_t>(host);
    for (const Copy& copy : copies_) {
      const auto begin = reinterpret_cast<uintptr_t>(copy.tensor->bytes().data());
      if (begin <= at && at < begin + copy.tensor->bytes().size()) return copy;
    }
    throw std::logic_error("a pointer into none of the tensors");
  }

  template <typename T>
  void move(T*& pointer) const {
    if (pointer == nullptr) return;
    const Copy& copy = copy_of(pointer);
    const auto* host = reinterpret_cast<const unsigned char*>(pointer);
    pointer = reinterpret_cast<T*>(copy.memory.data() + (host - copy.tensor->bytes().data()));
  }
  template <typename Params, typename... Pointers>
  void move(Params& params, Pointers&... pointers) const {
    params.device.type = DeviceType::kCUDA;
    (move(pointers), ...);
  }
  void move_options(AttentionOptions& options) const {
    move(options.mask.data), move(options.sinks.data), move(options.alibi_slopes.data);
  }

  cudaStream_t stream_;
  std::deque<Copy> copies_;  // a Copy does not move
  std::vector<AttentionState> states_;
};

}  // namespace dlattn::test
