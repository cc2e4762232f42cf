// info, threads, explain, the backend variable.
#include "dlattn/runtime.h"

#include <nanobind/stl/vector.h>

#include "backend.h"
#include "docstrings.h"
#include "options.h"

namespace dlattn::py {

namespace {

nb::dict info_py() {
  const Info i = info();
  nb::dict result;
  result["version"] = i.version;
  result["cuda_compiled"] = i.cuda_compiled;
  result["cuda_families"] = i.cuda_families;
  result["cuda_devices"] = i.cuda_devices;
  result["cuda_architectures"] = i.cuda_architectures;
  result["cuda_kernels"] = i.cuda_kernels;
  result["cuda_runtime"] = i.cuda_runtime;
  result["cuda_driver"] = i.cuda_driver;
  result["cpu_isas"] = i.cpu_isas;
  result["cpu_isa"] = i.cpu_isa;
  result["num_threads"] = i.num_threads;
  return result;
}

void set_num_threads_py(nb::handle n) {
  int64_t value = 0;
  if (!parse_int64(n, &value) || value < 1 || value > kMaxThreads) {
    throw InvalidArgument("set_num_threads: n is " + repr_text(n) + ", expected an int in 1.." +
                          std::to_string(kMaxThreads));
  }
  set_num_threads(static_cast<int>(value));
}

// (supported, backend, kernel, reason) of function(*args, **kwargs), which must be one of this module's operations.
nb::object explain_py(nb::handle function, nb::args args, nb::kwargs kwargs) {
  nb::object result;
  const ExplainScope scope(&result);
  function(*args, **kwargs);
  if (!result.is_valid()) throw InvalidArgument("explain: op is " + repr_text(function) + ", expected an operation");
  return result;
}

}  // namespace

void register_runtime(nb::module_& m) {
  m.def("info", info_py, kInfoDoc);
  m.def("set_num_threads", set_num_threads_py, "n"_any, kSetThreadsDoc);
  define_mismatch(m, "set_num_threads");
  m.def("get_num_threads", [] { return num_threads(); }, kGetThreadsDoc);
  m.def("_explain", explain_py, nb::arg("function"), nb::arg("args"), nb::arg("kwargs"));
  m.def("_use_backend_variable", use_backend_variable, nb::arg("context_variable"));
}

}  // namespace dlattn::py
