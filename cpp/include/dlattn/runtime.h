// What was built, what the machine can do, and how many threads the CPU backend uses.
#pragma once

#include <string>
#include <vector>

#include "dlattn/export.h"

namespace dlattn {

struct Info {
  std::string version;                     // "0.1.0"
  bool cuda_compiled = false;              // whether the CUDA backend was built
  std::vector<std::string> cuda_families;  // kernel families that were built: "simt", "mma", "wgmma"
  std::vector<std::string> cuda_devices;   // "0: NVIDIA H200 (sm_90)"; empty without a driver or GPU
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

}  // namespace dlattn
