#include "cpu/thread_pool.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "backend.h"
#include "dlattn/error.h"
#include "dlattn/runtime.h"

namespace dlattn::cpu {
namespace {

// A region costs 0.3 us while workers spin and 24-41 us once they sleep (2 cores); a pause takes about 10 ns.
constexpr int kSpins = 4000;

inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

class ThreadPool {
 public:
  explicit ThreadPool(int num_threads) : num_threads_(num_threads) {
    workers_.reserve(static_cast<size_t>(num_threads));
    sigset_t all,
        before;  // the host's signals are not for these threads, but faults and profiling stay where they happen
    sigfillset(&all);
    for (int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS, SIGPROF}) sigdelset(&all, fault);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      for (int i = 1; i < num_threads; ++i) workers_.emplace_back([this] { work(); });
    } catch (const std::exception&) {
      // the system gives no more threads: go on with those there are
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  ~ThreadPool() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
      generation_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }

  int num_threads() const { return num_threads_; }

  void run(int64_t tasks, TaskFn fn, void* context) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      fn_ = fn;
      context_ = context;
      tasks_ = tasks;
      next_.store(0, std::memory_order_relaxed);
      open_ = true;
      generation_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    take_tasks();
    {
      std::lock_guard<std::mutex> lock(mutex_);
      open_ = false;  // a worker that has not woken by now is not waited for
    }
    for (int spins = 0; active_.load(std::memory_order_acquire) != 0; ++spins) {
      if (spins < kSpins) {
        pause();
      } else {
        std::this_thread::yield();
      }
    }
    if (error_ != nullptr) {
      std::exception_ptr error = error_;
      error_ = nullptr;
      std::rethrow_exception(error);
    }
  }

 private:
  void take_tasks() {
    for (;;) {
      const int64_t task = next_.fetch_add(1, std::memory_order_relaxed);
      if (task >= tasks_) return;
      try {
        fn_(context_, task);
      } catch (...) {
        std::lock_guard<std::mutex> lock(mutex_);
        if (error_ == nullptr) error_ = std::current_exception();
      }
    }
  }

  void work() {
    uint64_t seen = 0;
    for (;;) {
      for (int spins = 0; generation_.load(std::memory_order_acquire) == seen && spins < kSpins; ++spins) pause();
      {
        std::unique_lock<std::mutex> lock(mutex_);
        wake_.wait(lock, [&] { return generation_.load(std::memory_order_relaxed) != seen; });
        seen = generation_.load(std::memory_order_relaxed);
        if (stop_) return;
        if (!open_) continue;
        active_.fetch_add(1, std::memory_order_relaxed);
      }
      take_tasks();
      active_.fetch_sub(1, std::memory_order_release);
    }
  }

  const int num_threads_;
  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<uint64_t> generation_{0};  // counts calls of run()
  bool open_ = false;                    // whether a worker may still join
  bool stop_ = false;

  TaskFn fn_ = nullptr;
  void* context_ = nullptr;
  int64_t tasks_ = 0;
  std::exception_ptr error_;
  alignas(64) std::atomic<int64_t> next_{0};
  alignas(64) std::atomic<int> active_{0};  // workers taking tasks
};

// The pool lives until the process ends: joining threads from a static destructor deadlocks in some hosts. `busy` guards it.
struct State {
  std::atomic_flag busy = ATOMIC_FLAG_INIT;
  ThreadPool* pool = nullptr;
  std::atomic<int> wanted{0};  // 0: not asked for
};

State& state() {
  static State* const instance = [] {
    // After fork() a child has none of the threads and perhaps a held lock: it forgets the pool and makes its own.
    pthread_atfork(nullptr, nullptr, [] {
      state().pool = nullptr;
      state().busy.clear();
    });
    return new State;
  }();
  return *instance;
}

int default_num_threads() {
  const char* text = std::getenv("DLATTN_NUM_THREADS");
  if (text != nullptr && *text != '\0') {
    char* end = nullptr;
    const long n = std::strtol(text, &end, 10);
    if (end != text && *end == '\0' && n >= 1 && n <= kMaxThreads) return static_cast<int>(n);
    throw InvalidArgument("DLATTN_NUM_THREADS is \"" + std::string(text) + "\", expected a number from 1 to " +
                          std::to_string(kMaxThreads));
  }
#if defined(__linux__)
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0 && CPU_COUNT(&set) > 0) return CPU_COUNT(&set);
#endif
  const unsigned n = std::thread::hardware_concurrency();
  return n == 0 ? 1 : static_cast<int>(n);
}

void run_alone(int64_t tasks, TaskFn fn, void* context) {
  for (int64_t i = 0; i < tasks; ++i) fn(context, i);
}

}  // namespace

void set_num_threads(int n) { state().wanted.store(n, std::memory_order_relaxed); }

int num_threads() {
  const int wanted = state().wanted.load(std::memory_order_relaxed);
  if (wanted > 0) return wanted;
  static const int by_default = default_num_threads();  // a throw leaves it to the next call
  return by_default;
}

void run_tasks(int64_t tasks, TaskFn fn, void* context) {
  State& s = state();
  const int threads = num_threads();
  if (threads == 1 || s.busy.test_and_set(std::memory_order_acquire)) {
    run_alone(tasks, fn, context);
    return;
  }
  struct Release {
    State& s;
    ~Release() { s.busy.clear(std::memory_order_release); }
  } release{s};
  if (s.pool == nullptr || s.pool->num_threads() != threads) {
    delete s.pool;
    s.pool = nullptr;
    s.pool = new ThreadPool(threads);
  }
  s.pool->run(tasks, fn, context);
}

}  // namespace dlattn::cpu
