#include "py.h"

namespace dlattn::py {

namespace {

PyObject* intern(const char* text) {
  PyObject* result = PyUnicode_InternFromString(text);
  if (result == nullptr) nb::raise_python_error();
  return result;
}

PyObject* tuple_of(PyObject* a, PyObject* b = nullptr) {
  PyObject* result = b ? PyTuple_Pack(2, a, b) : PyTuple_Pack(1, a);
  if (result == nullptr) nb::raise_python_error();
  return result;
}

Names make_names() {
  Names n{};
  n.dlpack = intern("__dlpack__");
  n.dlpack_device = intern("__dlpack_device__");
  n.exchange_api = intern("__dlpack_c_exchange_api__");
  n.cuda_array_interface = intern("__cuda_array_interface__");
  n.array_struct = intern("__array_struct__");
  n.array_namespace = intern("__array_namespace__");
  n.cuda_stream = intern("__cuda_stream__");
  n.is_neg = intern("is_neg");
  n.requires_grad = intern("requires_grad");
  n.dtype = intern("dtype");
  n.name = intern("name");
  n.view = intern("view");
  n.empty = intern("empty");
  n.device = intern("device");
  n.devices = intern("devices");
  n.module = intern("__module__");
  n.enter = intern("__enter__");
  n.leave = intern("__exit__");
  n.kw_version = tuple_of(intern("max_version"));
  n.kw_stream = tuple_of(intern("stream"));
  n.kw_stream_version = tuple_of(intern("stream"), intern("max_version"));
  n.kw_dtype = tuple_of(n.dtype);
  n.kw_dtype_device = tuple_of(n.dtype, n.device);
  n.max_version = tuple_of(PyLong_FromLong(1), PyLong_FromLong(1));
  return n;
}

}  // namespace

const Names& names() {
  static const Names instance = make_names();  // for the life of the process
  return instance;
}

nb::object get_or_null(nb::handle object, PyObject* name) {
  PyObject* result = PyObject_GetAttr(object.ptr(), name);
  if (result == nullptr) {
    if (!PyErr_ExceptionMatches(PyExc_AttributeError)) nb::raise_python_error();
    PyErr_Clear();
  }
  return nb::steal(result);
}

nb::handle loaded_module(const char* name) {
  PyObject* modules = PyImport_GetModuleDict();  // borrowed
  PyObject* module = PyDict_GetItemString(modules, name);
  return module == Py_None ? nullptr : module;
}

std::string type_text(nb::handle object) {
  if (object.is_none()) return "None";
  nb::handle type = object.type();
  try {
    const std::string name = nb::cast<std::string>(nb::str(type.attr("__name__")));
    const std::string module = nb::cast<std::string>(nb::str(nb::getattr(type, "__module__", nb::str("builtins"))));
    return module == "builtins" ? name : module + "." + name;
  } catch (const nb::python_error& error) {  // of a metaclass
    if (!is_ordinary_error(error)) throw;
    return "object of a type without a name";
  }
}

std::string a_text(nb::handle object) {
  if (object.is_none()) return "None";
  const std::string text = type_text(object);
  return (std::string("aeioAEIO").find(text[0]) == std::string::npos ? "a " : "an ") + text;
}

void clear_ordinary_error() {
  if (!PyErr_ExceptionMatches(PyExc_Exception) || PyErr_ExceptionMatches(PyExc_MemoryError)) nb::raise_python_error();
  PyErr_Clear();
}

std::string repr_text(nb::handle object) {
  constexpr size_t kLimit = 60;
  PyObject* text = PyObject_Repr(object.ptr());
  if (text == nullptr) {
    clear_ordinary_error();
    return "an object without a repr";
  }
  const nb::object owner = nb::steal(text);
  const char* utf8 = PyUnicode_AsUTF8AndSize(text, nullptr);
  if (utf8 == nullptr) {
    PyErr_Clear();
    return "an object with an odd repr";
  }
  std::string result = utf8;
  if (result.size() > kLimit) {
    size_t cut = kLimit;
    while (cut > 0 && (static_cast<unsigned char>(result[cut]) & 0xC0) == 0x80) --cut;  // not inside a UTF-8 character
    result = result.substr(0, cut) + "...";
  }
  return result;
}

bool is_ordinary_error(const nb::python_error& error) {
  return error.matches(PyExc_Exception) && !error.matches(PyExc_MemoryError);
}

std::string error_text(nb::python_error& error) {
  std::string text = nb::cast<std::string>(nb::str(error.type().attr("__name__")));
  PyObject* message = PyObject_Str(error.value().ptr());
  if (message == nullptr) {
    clear_ordinary_error();
    return text;
  }
  const nb::object owner = nb::steal(message);
  if (const char* utf8 = PyUnicode_AsUTF8AndSize(message, nullptr)) {
    const std::string line = utf8;
    text += ": " + line.substr(0, line.find('\n'));  // torch adds stack traces
  } else {
    PyErr_Clear();
  }
  return text;
}

}  // namespace dlattn::py
