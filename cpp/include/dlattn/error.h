// What the library throws. Nothing prints, exits or aborts; every check comes before anything is written.
#pragma once

#include <stdexcept>
#include <string>

#include "dlattn/export.h"

namespace dlattn {

// Base of all errors of this library.
class DLATTN_EXPORT Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The caller's mistake: a wrong shape, dtype, stride, length or value. Python: ValueError.
// The message names the argument, what it is and what was expected:
//   "attn_prefill: k.head_dim is 96, expected 128 (= q.head_dim)"
class DLATTN_EXPORT InvalidArgument : public Error {
 public:
  using Error::Error;
};

// Legal, but no kernel does it; the message says which option and what is supported. Python: NotImplementedError.
class DLATTN_EXPORT Unsupported : public Error {
 public:
  using Error::Error;
};

// The backend that this call needs was not built; the message says how to build it. Python: RuntimeError.
class DLATTN_EXPORT NotCompiled : public Error {
 public:
  using Error::Error;
};

// A CUDA call failed; the message holds the call and the CUDA error's name and text. Python: RuntimeError.
class DLATTN_EXPORT CudaError : public Error {
 public:
  using Error::Error;
};

}  // namespace dlattn
