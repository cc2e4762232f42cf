#include <algorithm>

#include "dlattn/runtime.h"
#include "dlattn/version.h"
#include "support/message.h"

namespace dlattn::test {
namespace {

TEST(RuntimeTest, VersionIsTheMacros) {
  EXPECT_STREQ(version(), DLATTN_VERSION);
  EXPECT_EQ(info().version, std::to_string(DLATTN_VERSION_MAJOR) + "." + std::to_string(DLATTN_VERSION_MINOR) + "." +
                                std::to_string(DLATTN_VERSION_PATCH));
}

TEST(RuntimeTest, InfoNamesWhatIsThere) {
  const Info there = info();
  ASSERT_FALSE(there.cpu_isas.empty());
  EXPECT_EQ(there.cpu_isas.front(), "baseline");
  EXPECT_EQ(std::count(there.cpu_isas.begin(), there.cpu_isas.end(), there.cpu_isa), 1);
  EXPECT_EQ(there.cuda_families.empty(), !there.cuda_compiled);
}

TEST(RuntimeTest, PointersAndStreamsOfABuildWithoutCuda) {
  if (info().cuda_compiled) GTEST_SKIP() << "this build has CUDA";
  const auto expect_not_compiled = [](const std::string& op, auto&& call) {
    try {
      call();
      ADD_FAILURE() << op << ": no error";
    } catch (const NotCompiled& error) {
      EXPECT_EQ(std::string(error.what()).rfind(op + ": the CUDA backend was not built", 0), 0u) << error.what();
    }
  };
  int memory = 0;
  expect_not_compiled("cuda_device_of", [&] { cuda_device_of(&memory); });
  expect_not_compiled("cuda_order_streams", [] { cuda_order_streams(0, nullptr, nullptr); });
}

TEST(RuntimeTest, ThreadsCanBeSet) {
  const int before = num_threads();
  EXPECT_GE(before, 1);
  set_num_threads(3);
  EXPECT_EQ(num_threads(), 3);
  EXPECT_EQ(info().num_threads, 3);
  EXPECT_EQ(invalid_argument([] { set_num_threads(0); }), "set_num_threads: n is 0, expected 1..4096");
  EXPECT_EQ(num_threads(), 3);
  set_num_threads(before);
}

}  // namespace
}  // namespace dlattn::test
