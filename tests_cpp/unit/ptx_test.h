// Fixture of the tests of cuda/ptx. Their device code is their own: one block writes down what wrappers did.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <string>
#include <vector>

#include "cuda/check.h"
#include "cuda/device.h"
#include "cuda/select.h"
#include "support/cuda_test.h"

namespace dlattn::test {

// Skipped where kernels of the family, for whose architectures the test is compiled, do not run.
template <cuda::Family kFamily>
class PtxTest : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    if (!cuda::family_runs_on(kFamily, cuda::device_caps(0))) {
      GTEST_SKIP() << "no " << cuda::name_of(kFamily) << " code for this device in this build";
    }
  }

  // What a block, launched by `launch(in, out)`, makes of `in`: of `count` elements, whose bytes were 0xFF.
  template <typename Out, typename In, typename Launch>
  std::vector<Out> out_of(const std::vector<In>& in, size_t count, Launch&& launch) {
    const DeviceBuffer from(in.size() * sizeof(In)), to(count * sizeof(Out));
    cuda::check(cudaMemcpyAsync(from.data(), in.data(), from.bytes(), cudaMemcpyHostToDevice, stream()),
                "cudaMemcpyAsync");
    cuda::check(cudaMemsetAsync(to.data(), 0xFF, to.bytes(), stream()), "cudaMemsetAsync");
    launch(reinterpret_cast<const In*>(from.data()), reinterpret_cast<Out*>(to.data()));
    cuda::check(cudaGetLastError(), "launch");
    cuda::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    std::vector<Out> out(count);
    cuda::check(cudaMemcpyAsync(out.data(), to.data(), to.bytes(), cudaMemcpyDeviceToHost, stream()),
                "cudaMemcpyAsync");
    stream().wait();
    return out;
  }
};

// Says where they begin to differ.
template <typename T>
void expect_same(const std::vector<T>& out, const std::vector<T>& expected, const std::string& what) {
  ASSERT_EQ(out.size(), expected.size()) << what;
  const auto first = std::mismatch(out.begin(), out.end(), expected.begin()).first;
  if (first == out.end()) return;
  const auto at = static_cast<size_t>(first - out.begin());
  ADD_FAILURE() << what << ": element " << at << " is " << out[at] << ", expected " << expected[at];
}

}  // namespace dlattn::test
