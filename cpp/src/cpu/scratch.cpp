#include "cpu/scratch.h"

#include <cstddef>
#include <memory>
#include <new>

namespace dlattn::cpu {
namespace {

constexpr std::align_val_t kAlignment{64};

struct Free {
  void operator()(float* p) const { ::operator delete(p, kAlignment); }
};

struct Scratch {
  std::unique_ptr<float, Free> data;
  int64_t size = 0;
};

thread_local Scratch scratch;

}  // namespace

float* thread_scratch(int64_t floats) {
  if (scratch.size < floats) {
    scratch.data.reset();
    scratch.size = 0;
    scratch.data.reset(static_cast<float*>(::operator new(static_cast<size_t>(floats) * sizeof(float), kAlignment)));
    scratch.size = floats;
  }
  return scratch.data.get();
}

}  // namespace dlattn::cpu
