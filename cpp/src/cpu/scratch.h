// Memory of one thread: grows to the largest request and stays until the thread ends.
#pragma once

#include <cstdint>

namespace dlattn::cpu {

// At least `floats` floats, 64-byte aligned, contents arbitrary; valid until the thread's next call.
float* thread_scratch(int64_t floats);

}  // namespace dlattn::cpu
