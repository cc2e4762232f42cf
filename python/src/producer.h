// What kind of arrays a Python type makes; looked up once per exact type.
#pragma once

#include "dlpack.h"
#include "py.h"

namespace dlattn::py {

enum class Framework : uint8_t { kOther, kNumPy, kNumPyMasked, kTorch, kJax, kJaxTracer, kCuPy, kNumba };

struct Producer {
  nb::object type;  // kept alive, so that its address stays its own
  Framework framework = Framework::kOther;
  const dlpack::ExchangeApi* api = nullptr;  // null: the type has none
  bool has_dlpack = false;
  bool has_cuda_interface = false;
  bool unversioned = false;  // __dlpack__ takes no max_version
  nb::object empty;          // the framework's empty(shape, dtype=...), found at first use
  nb::object float32;        // its float32 dtype, found at first use
  nb::object get_stream;     // CuPy's get_current_stream(device), found at first use
};

// The object's type is looked up in a small cache.
Producer& producer_of(nb::handle object);

}  // namespace dlattn::py
