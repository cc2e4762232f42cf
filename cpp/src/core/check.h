// The one form of every check: "<op>: <argument>.<property> is <got>, expected <want> (= <why>)".
// A check that holds costs a comparison; the text is built from the values, and only on failure.
#pragma once

#include <cstdint>
#include <string>

#include "dlattn/params.h"
#include "element.h"

namespace dlattn::core {

std::string name_of(Device device);

inline bool is_float(DType t) { return t == DType::kFloat32 || t == DType::kFloat16 || t == DType::kBFloat16; }
inline bool is_index(DType t) { return t == DType::kInt32 || t == DType::kInt64; }

class Check {
 public:
  explicit Check(const char* op) : op_(op) {}

  void equal(const char* name, int64_t got, int64_t want, const char* why = nullptr) const {
    if (got != want) fail(name, std::to_string(got), std::to_string(want), why);
  }
  void at_least(const char* name, int64_t got, int64_t low, const char* why = nullptr) const {
    if (got < low) fail(name, std::to_string(got), "at least " + std::to_string(low), why);
  }
  void in_range(const char* name, int64_t got, int64_t low, int64_t high, const char* why = nullptr) const {
    if (got < low || got > high) fail_range(name, got, low, high, why);
  }
  // Element i of an array; j >= 0: element [i, j].
  void element(const char* name, int64_t i, int64_t j, int64_t got, int64_t low, int64_t high, const char* why) const {
    if (got < low || got > high) fail_element(name, i, j, got, low, high, why);
  }
  void same_dtype(const char* name, DType got, DType want, const char* why) const {
    if (got != want) fail(name, name_of(got), name_of(want), why);
  }
  void float_dtype(const char* name, DType got) const {
    if (!is_float(got)) fail(name, name_of(got), "float32, float16 or bfloat16");
  }
  void index_dtype(const char* name, DType got) const {
    if (!is_index(got)) fail(name, name_of(got), "int32 or int64");
  }
  void device(Device device) const;
  // `elements` more than none need a pointer, aligned to the item.
  void pointer(const char* name, const void* data, DType dtype, bool has_elements) const {
    if (!has_elements) return;
    if (data == nullptr || reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(size_of(dtype)) != 0) {
      fail_pointer(name, data, dtype);
    }
  }

  [[noreturn]] void fail(const std::string& name, const std::string& got, const std::string& want,
                         const char* why = nullptr) const;
  [[noreturn]] void fail_text(const std::string& text) const;  // for what is not a value

 private:
  [[noreturn]] void fail_range(const char* name, int64_t got, int64_t low, int64_t high, const char* why) const;
  [[noreturn]] void fail_element(const char* name, int64_t i, int64_t j, int64_t got, int64_t low, int64_t high,
                                 const char* why) const;
  [[noreturn]] void fail_pointer(const char* name, const void* data, DType dtype) const;

  const char* op_;
};

}  // namespace dlattn::core
