// A problem of any operation, run on the device.
#pragma once

#include <vector>

#include "support/cuda_test.h"
#include "support/device_buffer.h"

namespace dlattn::test {

// kAny: sequences that overlap by mistake, whose rows are written by several thread blocks in any order.
enum class Bits { kSame, kAny };

// `launch(attempt)` three times, with the outputs as they were each time; leaves the last results in the problem's tensors.
template <typename Problem, typename Launch>
void run_on_device(Problem& problem, DeviceTensors& device, const DeviceStream& stream, Launch&& launch,
                   Bits bits = Bits::kSame) {
  std::vector<unsigned char> first;
  for (int attempt = 0; attempt < 3; ++attempt) {
    problem.restore();
    device.upload(problem.outputs());
    launch(attempt);
    stream.wait();
    device.download(problem.outputs());
    if (attempt == 0) {
      first = bytes_of(problem.outputs());
    } else if (bits == Bits::kSame) {
      EXPECT_TRUE(bytes_of(problem.outputs()) == first) << "run " << attempt << " has other bits";
    }
  }
}

// The public call on the device against the definition.
template <typename Problem>
void expect_definition_on_device(Problem& problem, const DeviceStream& stream) {
  DeviceTensors device(problem.tensors(), stream);
  const auto params = device.on_device(problem.params());
  run_on_device(problem, device, stream, [&](int) { problem.run(params, stream); });
  device.download(problem.tensors());  // inputs, too: they must be as they were
  problem.expect_definition();
}

}  // namespace dlattn::test
