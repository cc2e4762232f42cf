#include "core/check.h"

#include "dlattn/error.h"

namespace dlattn::core {

std::string name_of(Device device) {
  switch (device.type) {
    case DeviceType::kCPU:
      return "cpu";
    case DeviceType::kCUDA:
      return "cuda:" + std::to_string(device.index);
  }
  return "an unknown device";
}

void Check::device(Device device) const {
  if (device.type != DeviceType::kCPU && device.type != DeviceType::kCUDA) {
    fail("device", name_of(device), "cpu or cuda");
  }
  if (device.type == DeviceType::kCPU) {
    equal("device.index", device.index, 0, "the one of the CPU");
  } else {
    at_least("device.index", device.index, 0);
  }
}

void Check::fail(const std::string& name, const std::string& got, const std::string& want, const char* why) const {
  std::string text = name + " is " + got + ", expected " + want;
  if (why != nullptr) text += std::string(" (= ") + why + ")";
  fail_text(text);
}

void Check::fail_text(const std::string& text) const { throw InvalidArgument(std::string(op_) + ": " + text); }

void Check::fail_range(const char* name, int64_t got, int64_t low, int64_t high, const char* why) const {
  fail(name, std::to_string(got), std::to_string(low) + ".." + std::to_string(high), why);
}

void Check::fail_element(const char* name, int64_t i, int64_t j, int64_t got, int64_t low, int64_t high,
                         const char* why) const {
  std::string element = std::string(name) + "[" + std::to_string(i);
  if (j >= 0) element += ", " + std::to_string(j);
  element += "]";
  if (high < low) fail(element, std::to_string(got), "none", why);
  fail_range(element.c_str(), got, low, high, why);
}

void Check::fail_pointer(const char* name, const void* data, DType dtype) const {
  if (data == nullptr) fail(std::string(name) + ".data", "null", "a pointer to its elements");
  const int64_t item = size_of(dtype);
  const auto rest = static_cast<int64_t>(reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(item));
  fail(std::string(name) + ".data", std::to_string(rest) + " bytes off alignment",
       "a multiple of " + std::to_string(item) + " bytes", (std::string("the size of ") + name_of(dtype)).c_str());
}

}  // namespace dlattn::core
