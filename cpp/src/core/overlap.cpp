#include "core/overlap.h"

#include <algorithm>
#include <string>

namespace dlattn::core {
namespace {

constexpr int kMaxSteps = 1 << 16;

// coefficient * x with x in low..high; coefficient > 0.
struct Term {
  int64_t coefficient, low, high;
};

int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }
int64_t ceil_div(int64_t a, int64_t b) { return -floor_div(-a, b); }

// Whether a sum of terms falls into low..high, other than with every x = 0 if `nonzero`.
class Search {
 public:
  Search(int64_t low, int64_t high, bool nonzero) : low_(low), high_(high), nonzero_(nonzero) {}

  void add(int64_t coefficient, int64_t low, int64_t high) {
    if (coefficient < 0) {
      coefficient = -coefficient;
      std::swap(low, high);
      low = -low;
      high = -high;
    }
    if (coefficient == 0) return;  // adds nothing, whatever x is
    for (int i = 0; i < count_ && !nonzero_; ++i) {
      if (terms_[i].coefficient == coefficient) {  // the sum of two ranges of integers is a range
        terms_[i].low += low;
        terms_[i].high += high;
        return;
      }
    }
    terms_[count_++] = {coefficient, low, high};
  }

  bool found(int64_t start) {
    std::sort(terms_, terms_ + count_, [](const Term& a, const Term& b) { return a.coefficient > b.coefficient; });
    rest_low_[count_] = rest_high_[count_] = 0;
    for (int i = count_ - 1; i >= 0; --i) {
      rest_low_[i] = rest_low_[i + 1] + terms_[i].coefficient * terms_[i].low;
      rest_high_[i] = rest_high_[i + 1] + terms_[i].coefficient * terms_[i].high;
    }
    return visit(0, start, true);
  }

 private:
  bool visit(int level, int64_t sum, bool all_zero) {
    if (--steps_ < 0) return true;
    if (level == count_) return sum >= low_ && sum <= high_ && !(nonzero_ && all_zero);
    const Term& term = terms_[level];
    // Only an x that lets the rest bring the sum into low..high.
    const int64_t first = std::max(term.low, ceil_div(low_ - rest_high_[level + 1] - sum, term.coefficient));
    const int64_t last = std::min(term.high, floor_div(high_ - rest_low_[level + 1] - sum, term.coefficient));
    for (int64_t x = first; x <= last; ++x) {
      if (visit(level + 1, sum + x * term.coefficient, all_zero && x == 0)) return true;
    }
    return false;
  }

  int64_t low_, high_;
  bool nonzero_;
  int count_ = 0, steps_ = kMaxSteps;
  Term terms_[8] = {};
  int64_t rest_low_[9] = {}, rest_high_[9] = {};
};

}  // namespace

Region::Region(const char* name, const void* data, DType dtype, std::initializer_list<Axis> axes, int64_t run)
    : name_(name), base_(reinterpret_cast<intptr_t>(data)) {
  if (data == nullptr || run <= 0) return;
  for (const Axis& axis : axes) {
    if (axis.size <= 0) return;
  }
  const int64_t item = size_of(dtype);
  low_ = base_;
  if (run > INT64_MAX / 32 / item) {
    out_of_range_ = true;
    empty_ = false;
    return;
  }
  run_ = run * item;
  high_ = base_ + run_;
  for (const Axis& axis : axes) {
    if (axis.size == 1) continue;
    int64_t reach = 0;  // a quarter of the range, so that no sum in Search leaves 64 bits
    if (__builtin_mul_overflow(axis.stride, item, &stride_[rank_]) ||
        __builtin_mul_overflow(stride_[rank_], axis.size - 1, &reach) || reach > INT64_MAX / 32 ||
        reach < INT64_MIN / 32) {
      out_of_range_ = true;
      empty_ = false;
      return;
    }
    size_[rank_++] = axis.size;
    (reach < 0 ? low_ : high_) += reach;
  }
  empty_ = false;
}

bool Region::same_elements_as(const Region& other) const {
  if (empty_ || other.empty_ || base_ != other.base_ || rank_ != other.rank_ || run_ != other.run_) return false;
  for (int i = 0; i < rank_; ++i) {
    if (size_[i] != other.size_[i] || stride_[i] != other.stride_[i]) return false;
  }
  return true;
}

bool Region::overlaps(const Region& other) const {
  if (empty_ || other.empty_ || high_ <= other.low_ || other.high_ <= low_) return false;
  Search search(1 - run_, other.run_ - 1, false);
  for (int i = 0; i < rank_; ++i) search.add(stride_[i], 0, size_[i] - 1);
  for (int i = 0; i < other.rank_; ++i) search.add(-other.stride_[i], 0, other.size_[i] - 1);
  return search.found(base_ - other.base_);
}

bool Region::overlaps_itself() const {
  if (empty_) return false;
  // Usual views: each stride steps over all that the smaller ones reach.
  int order[kMaxAxes] = {};
  const auto step = [this](int axis) { return stride_[axis] < 0 ? -stride_[axis] : stride_[axis]; };
  for (int i = 0; i < rank_; ++i) {
    int at = i;
    for (; at > 0 && step(order[at - 1]) > step(i); --at) order[at] = order[at - 1];
    order[at] = i;
  }
  int64_t reach = run_;
  bool nested = true;
  for (int i = 0; i < rank_; ++i) {
    if (step(order[i]) == 0) return true;
    nested = nested && step(order[i]) >= reach;
    reach += step(order[i]) * (size_[order[i]] - 1);
  }
  if (nested) return false;
  Search search(1 - run_, run_ - 1, true);
  for (int i = 0; i < rank_; ++i) search.add(stride_[i], 1 - size_[i], size_[i] - 1);
  return search.found(0);
}

void check_memory(const Check& check, const Region* outputs, int num_outputs, const Region* inputs, int num_inputs,
                  int in_place) {
  for (int i = 0; i < num_inputs + num_outputs; ++i) {
    const Region& region = i < num_inputs ? inputs[i] : outputs[i - num_inputs];
    if (region.out_of_range()) check.fail_text(std::string(region.name()) + ".strides reach beyond the address space");
  }
  for (int i = 0; i < num_outputs; ++i) {
    const Region& out = outputs[i];
    if (out.overlaps_itself()) {
      check.fail_text(std::string(out.name()) + ".strides put two elements at one address, expected one for each");
    }
    for (int j = 0; j < i; ++j) {
      if (out.overlaps(outputs[j])) {
        check.fail_text(std::string(out.name()) + " overlaps " + outputs[j].name() +
                        " in memory, expected separate memory");
      }
    }
    for (int j = 0; j < num_inputs; ++j) {
      if (!out.overlaps(inputs[j]) || (j == i && i < in_place && out.same_elements_as(inputs[j]))) continue;
      check.fail_text(std::string(out.name()) + " overlaps " + inputs[j].name() +
                      " in memory, expected separate memory");
    }
  }
}

}  // namespace dlattn::core
