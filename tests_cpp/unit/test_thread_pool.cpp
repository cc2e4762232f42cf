// The CPU backend's threads: every task once, exceptions, nesting, concurrent callers, changed sizes, fork.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

#include "cpu/thread_pool.h"
#include "dlattn/runtime.h"

namespace {

using dlattn::cpu::parallel_for;

class ThreadPool : public ::testing::Test {
 protected:
  void SetUp() override { before_ = dlattn::num_threads(); }
  void TearDown() override { dlattn::set_num_threads(before_); }

  int before_ = 1;
};

void expect_each_once(int64_t tasks) {
  std::vector<std::atomic<int>> count(static_cast<size_t>(tasks));
  parallel_for(tasks, true, [&](int64_t i) { count[static_cast<size_t>(i)].fetch_add(1); });
  for (int64_t i = 0; i < tasks; ++i)
    ASSERT_EQ(count[static_cast<size_t>(i)].load(), 1) << "task " << i << " of " << tasks;
}

TEST_F(ThreadPool, RunsEveryTaskOnceForAnyNumberOfThreads) {
  for (int threads : {1, 2, 3, 8, 2}) {
    dlattn::set_num_threads(threads);
    for (int64_t tasks : {0, 1, 2, 3, 7, 1000}) expect_each_once(tasks);
  }
}

TEST_F(ThreadPool, RunsManyShortRegions) {
  dlattn::set_num_threads(3);
  for (int region = 0; region < 3000; ++region) expect_each_once(5);
}

TEST_F(ThreadPool, UsesOtherThreads) {
  dlattn::set_num_threads(2);
  const std::thread::id caller = std::this_thread::get_id();
  std::atomic<bool> other{false};
  // each task waits until another thread has had one: two threads are needed to finish
  parallel_for(2, true, [&](int64_t) {
    if (std::this_thread::get_id() != caller) other.store(true);
    while (!other.load()) std::this_thread::yield();
  });
  EXPECT_TRUE(other.load());
}

TEST_F(ThreadPool, RethrowsTheFirstExceptionAfterAllTasks) {
  dlattn::set_num_threads(2);
  std::atomic<int> done{0};
  const auto body = [&](int64_t i) {
    done.fetch_add(1);
    if (i == 3) throw std::runtime_error("task 3");
  };
  EXPECT_THROW(parallel_for(100, true, body), std::runtime_error);
  EXPECT_EQ(done.load(), 100);
  expect_each_once(10);  // and it works on
}

TEST_F(ThreadPool, RunsNestedCallsAlone) {
  dlattn::set_num_threads(2);
  std::atomic<int> total{0};
  parallel_for(8, true, [&](int64_t) { parallel_for(8, true, [&](int64_t) { total.fetch_add(1); }); });
  EXPECT_EQ(total.load(), 64);
}

TEST_F(ThreadPool, TakesCallsFromSeveralThreads) {
  dlattn::set_num_threads(2);
  std::vector<std::thread> callers;
  for (int c = 0; c < 4; ++c) {
    callers.emplace_back([] {
      for (int region = 0; region < 300; ++region) expect_each_once(6);
    });
  }
  for (std::thread& caller : callers) caller.join();
}

TEST_F(ThreadPool, WorksInAForkedChild) {
  dlattn::set_num_threads(2);
  expect_each_once(100);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    std::atomic<int> total{0};
    parallel_for(100, true, [&](int64_t) { total.fetch_add(1); });
    _exit(total.load() == 100 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  expect_each_once(100);
}

}  // namespace
