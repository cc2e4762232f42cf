#include "cuda/device.h"

#include <cuda.h>

#include <atomic>
#include <mutex>

#include "backend.h"
#include "cuda/check.h"
#include "cuda/driver_function.h"
#include "dlattn/error.h"

namespace dlattn::cuda {

int device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  return count;
}

namespace {

int attribute(cudaDeviceAttr attr, int device) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, attr, device), "cudaDeviceGetAttribute");
  return value;
}

DeviceCaps query(int device) {
  DeviceCaps caps;
  caps.major = attribute(cudaDevAttrComputeCapabilityMajor, device);
  caps.minor = attribute(cudaDevAttrComputeCapabilityMinor, device);
  caps.num_sms = attribute(cudaDevAttrMultiProcessorCount, device);
  caps.max_shared_bytes = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  return caps;
}

}  // namespace

const DeviceCaps& device_caps(int device) {
  constexpr int kMaxDevices = 64;  // of one machine
  static std::mutex mutex;
  static std::atomic<bool> known[kMaxDevices];
  static DeviceCaps caps[kMaxDevices];
  if (device < 0 || device >= kMaxDevices) fail(cudaErrorInvalidDevice, "device_caps");
  if (!known[device].load(std::memory_order_acquire)) {
    const std::lock_guard<std::mutex> lock(mutex);
    if (!known[device].load(std::memory_order_relaxed)) caps[device] = query(device);
    known[device].store(true, std::memory_order_release);
  }
  return caps[device];
}

std::vector<std::string> device_names() {
  std::vector<std::string> names;
  for (int device = 0; device < device_count(); ++device) {
    cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
    names.push_back(std::to_string(device) + ": " + properties.name + " (sm_" + std::to_string(properties.major) +
                    std::to_string(properties.minor) + ")");
  }
  return names;
}

int device_of(const void* pointer) {
  cudaPointerAttributes attributes;
  const cudaError_t error = cudaPointerGetAttributes(&attributes, pointer);
  if (error == cudaErrorInvalidValue) {
    cudaGetLastError();
  } else {
    check(error, "cudaPointerGetAttributes");
    if (attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged) return attributes.device;
  }
  throw InvalidArgument("cuda_device_of: pointer is to memory that is not a device's, expected CUDA memory");
}

void order(int device, Stream earlier, Stream later) {
  const DeviceGuard guard(device);
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  cudaError_t error = cudaEventRecord(event, earlier);
  if (error == cudaSuccess) error = cudaStreamWaitEvent(later, event, 0);
  cudaEventDestroy(event);  // freed once it has completed
  check(error, "ordering two streams");
}

namespace {

struct ContextStack {
  decltype(&cuDevicePrimaryCtxRetain) retain = driver_function<decltype(retain)>("cuDevicePrimaryCtxRetain");
  decltype(&cuDevicePrimaryCtxRelease) release = driver_function<decltype(release)>("cuDevicePrimaryCtxRelease");
  decltype(&cuCtxPushCurrent) push = driver_function<decltype(push)>("cuCtxPushCurrent");
  decltype(&cuCtxPopCurrent) pop = driver_function<decltype(pop)>("cuCtxPopCurrent");
};

const ContextStack& context_stack() {
  static const ContextStack stack;
  return stack;
}

}  // namespace

DeviceGuard::DeviceGuard(int device) {
  int current = -1;
  check(cudaGetDevice(&current), "cudaGetDevice");
  if (current == device) return;
  const ContextStack& stack = context_stack();
  check(cudaInitDevice(device, 0, 0), "cudaInitDevice");  // the runtime keeps the context from now on
  CUcontext context = nullptr;
  check(static_cast<cudaError_t>(stack.retain(&context, device)), "cuDevicePrimaryCtxRetain");
  const CUresult error = stack.push(context);
  stack.release(device);
  check(static_cast<cudaError_t>(error), "cuCtxPushCurrent");
  pushed_ = true;
}

DeviceGuard::~DeviceGuard() {
  CUcontext context = nullptr;
  if (pushed_) context_stack().pop(&context);
}

}  // namespace dlattn::cuda
