// Which memory a strided tensor covers, and whether two of them share a byte.
//
// The rule: an output must have one address for each element, and share no element with an input or another output
// (unless the operation says that it may be done in place). The test is exact, not one of intervals: q, k, v and out may
// be slices of one packed buffer. It looks for integers i, j with base_a + i . strides_a = base_b + j . strides_b inside
// the shapes, the largest strides first; views of one lattice take a few steps. A pair of odd lattices that takes more
// than kMaxSteps counts as sharing memory.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "core/check.h"

namespace dlattn::core {

struct Axis {
  int64_t size, stride;  // stride in elements
};

class Region {
 public:
  Region() = default;
  // `run`: contiguous elements of the last axis. Empty if data is null or a size is 0.
  Region(const char* name, const void* data, DType dtype, std::initializer_list<Axis> axes, int64_t run);

  const char* name() const { return name_; }
  bool empty() const { return empty_; }
  bool out_of_range() const { return out_of_range_; }  // an offset does not fit 64 bits

  bool same_elements_as(const Region& other) const;  // the same address for every index
  bool overlaps(const Region& other) const;
  bool overlaps_itself() const;

 private:
  static constexpr int kMaxAxes = 4;

  const char* name_ = "";
  intptr_t base_ = 0;
  bool empty_ = true, out_of_range_ = false;
  int rank_ = 0;                                         // axes of size > 1
  int64_t size_[kMaxAxes] = {}, stride_[kMaxAxes] = {};  // bytes
  int64_t run_ = 0;                                      // bytes
  intptr_t low_ = 0, high_ = 0;                          // addresses [low, high)
};

// Throws unless outputs are sound and apart from the inputs. A pair (output i, input i) with i < in_place may be the same.
void check_memory(const Check& check, const Region* outputs, int num_outputs, const Region* inputs, int num_inputs,
                  int in_place = 0);

}  // namespace dlattn::core
