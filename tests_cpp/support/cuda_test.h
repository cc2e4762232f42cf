// Fixtures of tests that run on device 0. Without a GPU they are skipped, or fail if DLATTN_REQUIRE_GPU is set. They fail if
// there is one that this build has no code for.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>
#include <string>

#include "cuda/check.h"
#include "cuda/device.h"
#include "cuda/select.h"
#include "support/device_buffer.h"

namespace dlattn::test {

// Why there is no device here; empty: there is one.
inline std::string why_no_device() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  cudaGetLastError();
  if (error != cudaSuccess) return cudaGetErrorString(error);
  return count == 0 ? "none is visible" : "";
}

template <class Base>
class OnDevice : public Base {
 protected:
  void SetUp() override {
    const std::string none = why_no_device();
    if (!none.empty()) {
      if (std::getenv("DLATTN_REQUIRE_GPU") != nullptr)
        FAIL() << "DLATTN_REQUIRE_GPU is set, but there is none: " << none;
      GTEST_SKIP() << "skipped, no CUDA device: " << none;  // CMakeLists.txt looks for this
    }
    ASSERT_EQ(cuda::why_device_cannot_run(0), "");
    stream_.emplace();
  }

  // No error stays behind in the runtime.
  void TearDown() override {
    if (!stream_) return;
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }

  const DeviceStream& stream() const { return *stream_; }

 private:
  std::optional<DeviceStream> stream_;
};

using CudaTest = OnDevice<::testing::Test>;
template <typename Param>
using CudaTestWithParam = OnDevice<::testing::TestWithParam<Param>>;

}  // namespace dlattn::test
