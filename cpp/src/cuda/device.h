// The devices of this machine, and which one is current.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cuda/archs.h"

namespace dlattn::cuda {

int device_count();  // 0 without a driver or a GPU; never throws

// Of a device, asked for once. Throws CudaError if there is no such device.
const DeviceCaps& device_caps(int device);

std::vector<std::string> device_names();  // "0: NVIDIA H200 (sm_90)"

// Makes a device current while it lives. Not by cudaSetDevice, which on the way back would make a context on a device that
// had none (hundreds of megabytes of its memory).
class DeviceGuard {
 public:
  explicit DeviceGuard(int device);
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;
  ~DeviceGuard();

 private:
  bool pushed_ = false;
};

}  // namespace dlattn::cuda
