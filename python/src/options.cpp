#include "options.h"

#include <cmath>

namespace dlattn::py {

void define_mismatch(nb::module_& m, const char* name) {
  const nb::object function = m.attr(name);
  const std::string doc = nb::cast<std::string>(function.attr("__nb_signature__")[0][1]);
  const std::string signature = "def " + std::string(name) + "(*args, **kwargs) -> typing.NoReturn";
  m.def(
      name,
      [name](nb::args args, nb::kwargs kwargs) {
        nb::module_::import_("dlattn._signature").attr("raise_mismatch")(name, args, kwargs);
        return nb::none();
      },
      nb::sig(signature.c_str()), doc.c_str());
}

bool parse_int64(nb::handle object, int64_t* result) {
  if (PyBool_Check(object.ptr()) || !PyIndex_Check(object.ptr())) return false;
  const nb::object number = nb::steal(PyNumber_Index(object.ptr()));
  if (!number.is_valid()) {
    clear_ordinary_error();
    return false;
  }
  *result = PyLong_AsLongLong(number.ptr());
  if (*result == -1 && PyErr_Occurred()) {
    PyErr_Clear();  // OverflowError
    return false;
  }
  return true;
}

bool parse_bool(const Call& call, const char* name, nb::handle object) {
  if (object.ptr() == Py_True) return true;
  if (object.ptr() == Py_False) return false;
  const std::string type = type_text(object);
  if (type == "numpy.bool" || type == "numpy.bool_") return is_true(object);
  call.fail(std::string(name) + " is " + repr_text(object) + ", expected True or False");
}

float parse_float(const Call& call, const char* name, nb::handle object) {
  PyObject* p = object.ptr();
  double value = NAN;
  bool is_number = false;
  // Numbers only: an array of one element would be a device synchronisation, or a mistake.
  if (PyFloat_Check(p) ||
      (!PyBool_Check(p) && PyNumber_Check(p) && !get_or_null(object, names().dlpack_device).is_valid())) {
    value = PyFloat_AsDouble(p);
    is_number = !PyErr_Occurred();
    if (!is_number) clear_ordinary_error();
  }
  const auto result = static_cast<float>(value);
  if (!is_number || !std::isfinite(result)) {
    call.fail(std::string(name) + " is " + repr_text(object) + ", expected a finite float");
  }
  return result;
}

Layout parse_layout(const Call& call, nb::handle object) {
  if (PyUnicode_Check(object.ptr())) {
    if (PyUnicode_CompareWithASCIIString(object.ptr(), "blhd") == 0) return Layout::kBLHD;
    if (PyUnicode_CompareWithASCIIString(object.ptr(), "bhld") == 0) return Layout::kBHLD;
  }
  call.fail("layout is " + repr_text(object) + ", expected 'blhd' or 'bhld'");
}

std::pair<int64_t, int64_t> parse_window(const Call& call, nb::handle object) {
  std::pair<int64_t, int64_t> window;
  PyObject* p = object.ptr();
  if (PyTuple_Check(p) && PyTuple_Size(p) == 2 && parse_int64(PyTuple_GetItem(p, 0), &window.first) &&
      parse_int64(PyTuple_GetItem(p, 1), &window.second)) {
    return window;
  }
  if (PyList_Check(p) && PyList_Size(p) == 2 && parse_int64(PyList_GetItem(p, 0), &window.first) &&
      parse_int64(PyList_GetItem(p, 1), &window.second)) {
    return window;
  }
  call.fail("window is " + repr_text(object) + ", expected (left, right), two ints, -1 for unlimited");
}

}  // namespace dlattn::py
