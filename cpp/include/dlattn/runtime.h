// What was built, what the machine can do, and how many threads the CPU backend uses.
#pragma once

#include <string>
#include <vector>

#include "dlattn/export.h"
#include "dlattn/params.h"

namespace dlattn {

struct Info {
  std::string version;                          // "0.1.0"
  bool cuda_compiled = false;                   // whether the CUDA backend was built
  std::vector<std::string> cuda_families;       // kernel families that were built: "simt", "mma", "wgmma"
  std::vector<std::string> cuda_devices;        // "0: NVIDIA H200 (sm_90)"; empty without a driver or GPU
  std::vector<std::string> cuda_architectures;  // what the kernels were compiled for: "80", "90a-real" ("80": PTX too)
  std::vector<std::string> cuda_kernels;        // names, as explain() gives them
  std::string cuda_runtime;                     // CUDA's own libraries: "13.0"; empty: not built
  std::string cuda_driver;                      // the newest CUDA that the driver knows: "13.0"; empty: no driver
  // Built levels that this processor has, the best last: "baseline", "avx2", "avx512".
  std::vector<std::string> cpu_isas;
  std::string cpu_isa;  // the one in use: the best, or what DLATTN_CPU_ISA names
  int num_threads = 1;  // of the CPU backend
};

DLATTN_EXPORT Info info();

DLATTN_EXPORT const char* version() noexcept;

// Threads of the CPU backend, the caller's among them. Default: DLATTN_NUM_THREADS if set, else the processors this
// process may run on. Results do not depend on it. InvalidArgument unless 1 <= n <= kMaxThreads, for the variable too.
constexpr int kMaxThreads = 4096;
DLATTN_EXPORT void set_num_threads(int n);
DLATTN_EXPORT int num_threads();

// For callers that hold pointers and streams but no CUDA toolkit. Both throw NotCompiled without the CUDA backend, and
// CudaError if CUDA fails.

// The device that `pointer` is memory of, managed memory included. InvalidArgument: it is no device's (pinned host memory is
// not).
DLATTN_EXPORT int cuda_device_of(const void* pointer);

// What is queued on `later` after this call runs after what was queued on `earlier` before it; both streams are of
// `device`. Waits for nothing itself.
DLATTN_EXPORT void cuda_order_streams(int device, Stream earlier, Stream later);

}  // namespace dlattn
