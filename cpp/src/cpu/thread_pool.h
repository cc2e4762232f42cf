// The CPU backend's threads.
#pragma once

#include <cstdint>

namespace dlattn::cpu {

using TaskFn = void (*)(void* context, int64_t task);

// Call fn(context, 0 .. tasks - 1), each once, on up to num_threads() threads, the caller's among them. Tasks are taken in
// order. The first exception of a task is rethrown here, after the others have ended. A call from inside a task, or while
// another thread's call is running, does its tasks alone.
void run_tasks(int64_t tasks, TaskFn fn, void* context);

template <class F>
void parallel_for(int64_t tasks, bool worth_threads, const F& body) {
  if (!worth_threads || tasks < 2) {
    for (int64_t i = 0; i < tasks; ++i) body(i);
    return;
  }
  run_tasks(tasks, [](void* context, int64_t i) { (*static_cast<const F*>(context))(i); }, const_cast<F*>(&body));
}

}  // namespace dlattn::cpu
