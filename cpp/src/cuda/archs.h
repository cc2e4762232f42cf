// Which compiled code a device can run. Pure: no CUDA calls.
#pragma once

#include <string>

namespace dlattn::cuda {

// What kernels are chosen by.
struct DeviceCaps {
  int major = 0, minor = 0;  // compute capability
  int num_sms = 0;
  int max_shared_bytes = 0;  // of one thread block, opted in

  int capability() const { return 10 * major + minor; }
};

// One entry of CMAKE_CUDA_ARCHITECTURES.
struct ArchTarget {
  int capability;  // 75, 80, 90, 120
  char suffix;     // 'a': that capability only; 'f': its family (same major); 0: none
  bool real;       // machine code for it is there
  bool ptx;        // PTX for it is there
};

// Machine code runs on its own major capability from its minor on, PTX on every later one; "a" code on its own alone.
bool runs_on(const ArchTarget& target, const DeviceCaps& caps);

// As CMake writes it: "75-real", "80", "90a-real".
std::string to_string(const ArchTarget& target);

}  // namespace dlattn::cuda
