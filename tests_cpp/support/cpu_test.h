// Fixture of tests that run the CPU backend: CTest registers them once per instruction set (DLATTN_CPU_ISA).
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "dlattn/error.h"
#include "dlattn/runtime.h"

namespace dlattn::test {

inline void skip_unless_isa_exists() {
  try {
    info();
  } catch (const InvalidArgument& error) {  // DLATTN_CPU_ISA names a level that this processor lacks
    GTEST_SKIP() << error.what();
  }
}

class CpuTest : public ::testing::Test {
 protected:
  void SetUp() override { skip_unless_isa_exists(); }
};

template <typename Param>
class CpuTestWithParam : public ::testing::TestWithParam<Param> {
 protected:
  void SetUp() override { skip_unless_isa_exists(); }
};

// Runs `call` with 1, 2 and 3 threads; `snapshot` returns the result's bytes, which must be the same each time.
template <typename Call, typename Snapshot>
void expect_same_bits(Call&& call, Snapshot&& snapshot) {
  const int before = num_threads();
  std::vector<std::vector<unsigned char>> results;
  for (int threads : {1, 2, 3, 3}) {
    set_num_threads(threads);
    call();
    results.push_back(snapshot());
  }
  set_num_threads(before);
  for (size_t i = 1; i < results.size(); ++i) EXPECT_TRUE(results[i] == results[0]) << "run " << i << " has other bits";
}

}  // namespace dlattn::test
