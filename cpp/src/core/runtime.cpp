#include "dlattn/runtime.h"

#include "backend.h"
#include "core/check.h"
#include "dlattn/version.h"

namespace dlattn {

Info info() {
  Info info;
  info.version = version();
  info.cuda_compiled = cuda::compiled();
  info.cuda_families = cuda::families();
  info.cuda_devices = cuda::devices();
  info.cuda_architectures = cuda::architectures();
  info.cuda_kernels = cuda::kernels();
  info.cuda_runtime = cuda::runtime_version();
  info.cuda_driver = cuda::driver_version();
  info.cpu_isas = cpu::available_isas();
  info.cpu_isa = cpu::current_isa();
  info.num_threads = num_threads();
  return info;
}

const char* version() noexcept { return DLATTN_VERSION; }

void set_num_threads(int n) {
  core::Check("set_num_threads").in_range("n", n, 1, kMaxThreads);
  cpu::set_num_threads(n);
}

int num_threads() { return cpu::num_threads(); }

int cuda_device_of(const void* pointer) { return cuda::device_of(pointer); }

void cuda_order_streams(int device, Stream earlier, Stream later) { cuda::order(device, earlier, later); }

}  // namespace dlattn
