// Small Python helpers: interned names, vector calls, texts for messages.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>

namespace dlattn::py {

namespace nb = nanobind;

// Attribute names, made once: looking up an interned string costs a pointer comparison.
struct Names {
  PyObject *dlpack, *dlpack_device, *exchange_api, *cuda_array_interface, *array_struct, *array_namespace, *cuda_stream;
  PyObject *is_neg, *requires_grad, *dtype, *name, *view, *empty, *device, *devices, *module, *enter, *leave;
  PyObject *kw_version, *kw_stream, *kw_stream_version, *kw_dtype, *kw_dtype_device;  // tuples of keyword names
  PyObject* max_version;                                                              // the tuple (1, 1)
};
const Names& names();

// callable(args[0..n-1], then the keywords named by the tuple `keywords`); throws nb::python_error.
inline nb::object call_function(PyObject* callable, PyObject* const* args, size_t num_positional,
                                PyObject* keywords = nullptr) {
#if defined(NB_BACKEND_MODULE)
  PyObject* result = nb::detail::vectorcall(callable, args, num_positional, keywords);
#else
  PyObject* result = PyObject_Vectorcall(callable, args, num_positional, keywords);
#endif
  if (result == nullptr) nb::raise_python_error();
  return nb::steal(result);
}

// args[0].name(args[1..n-1], keywords); n counts args[0].
inline nb::object call_method(PyObject* name, PyObject* const* args, size_t num_positional,
                              PyObject* keywords = nullptr) {
#if defined(NB_BACKEND_MODULE)
  PyObject* result = nb::detail::vectorcall_method(name, args, num_positional, keywords);
#else
  PyObject* result = PyObject_VectorcallMethod(name, args, num_positional, keywords);
#endif
  if (result == nullptr) nb::raise_python_error();
  return nb::steal(result);
}

inline nb::object get(nb::handle object, PyObject* name) {
  PyObject* result = PyObject_GetAttr(object.ptr(), name);
  if (result == nullptr) nb::raise_python_error();
  return nb::steal(result);
}

// Null if there is no such attribute (any AttributeError counts as that); throws other errors.
nb::object get_or_null(nb::handle object, PyObject* name);

// bool(object), as `if` has it; throws nb::python_error.
inline bool is_true(nb::handle object) {
  const int result = PyObject_IsTrue(object.ptr());
  if (result < 0) nb::raise_python_error();
  return result == 1;
}

// A loaded module, or null: never imports anything.
nb::handle loaded_module(const char* name);

// "numpy.ndarray": the type's name with its module, unless that is builtins.
std::string type_text(nb::handle object);

// The same for "x is ...": "a numpy.ndarray", "an int", "None".
std::string a_text(nb::handle object);

// repr(object), cut to a length that fits a message.
std::string repr_text(nb::handle object);

// Forgets Python's current error if it is an ordinary one, else throws it: an interrupt or a lack of memory.
void clear_ordinary_error();

// Whether an exception of a producer may be turned into a message of ours: an ordinary error, no MemoryError or
// interrupt.
bool is_ordinary_error(const nb::python_error& error);

// "BufferError: text" of a Python error.
std::string error_text(nb::python_error& error);

}  // namespace dlattn::py
