// dlattn._core: the Python face of the library.
#include "dlattn/error.h"
#include "dlattn/runtime.h"
#include "options.h"

namespace {

void translate(const std::exception_ptr& error, void* /*payload*/) {
  try {
    std::rethrow_exception(error);
  } catch (const dlattn::InvalidArgument& e) {
    PyErr_SetString(PyExc_ValueError, e.what());
  } catch (const dlattn::Unsupported& e) {
    PyErr_SetString(PyExc_NotImplementedError, e.what());
  } catch (const dlattn::Error& e) {  // NotCompiled, CudaError
    PyErr_SetString(PyExc_RuntimeError, e.what());
  }
}

}  // namespace

NB_MODULE(_core, m) {
  nanobind::register_exception_translator(translate);
  m.attr("__version__") = dlattn::version();
  dlattn::py::register_attention(m);
  dlattn::py::register_rotary(m);
  dlattn::py::register_append(m);
  dlattn::py::register_merge(m);
  dlattn::py::register_jax(m);
  dlattn::py::register_runtime(m);
}
