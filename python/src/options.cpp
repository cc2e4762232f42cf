#include "options.h"

#include <cmath>

#include "dlattn/runtime.h"

namespace dlattn::py {

namespace {

PyObject* g_backend_variable = nullptr;  // a ContextVar of int; null until attn_backend() is first entered

bool parse_int64(PyObject* object, int64_t* result) {
  if (PyBool_Check(object) || !PyIndex_Check(object)) return false;
  const nb::object number = nb::steal(PyNumber_Index(object));
  if (!number.is_valid()) {
    PyErr_Clear();
    return false;
  }
  *result = PyLong_AsLongLong(number.ptr());
  if (*result == -1 && PyErr_Occurred()) {
    PyErr_Clear();
    return false;
  }
  return true;
}

}  // namespace

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
    PyErr_Clear();
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

BackendChoice current_backend() {
  if (g_backend_variable == nullptr) return BackendChoice::kAuto;
  return static_cast<BackendChoice>(nb::cast<int>(nb::handle(g_backend_variable).attr("get")()));
}

void use_backend_variable(nb::object context_variable) {
  if (g_backend_variable == nullptr) g_backend_variable = context_variable.release().ptr();
}

bool goes_to_torch(const Call& call, const TensorView& first, const char* first_name) {
  const BackendChoice choice = current_backend();
  if (choice == BackendChoice::kTorch) return true;
  if (call.needs_grad()) {
    if (choice == BackendChoice::kAuto) return true;
    call.fail(
        std::string(call.needs_grad_name()) +
        " requires grad, expected no gradients (= the CPU and CUDA backends are forward only; use torch.no_grad(), "
        "or ATTN_BACKEND.AUTO or TORCH)");
  }
  const bool on_cpu = first.device.type == DeviceType::kCPU;
  if (choice == BackendChoice::kCPU && !on_cpu) {
    call.fail(std::string(first_name) + ".device is cuda:" + std::to_string(first.device.index) +
              ", expected cpu (= attn_backend(ATTN_BACKEND.CPU) is in force)");
  }
  if (choice == BackendChoice::kCUDA && on_cpu) {
    if (!info().cuda_compiled) {
      throw NotCompiled(
          std::string(call.op()) +
          ": attn_backend(ATTN_BACKEND.CUDA) is in force, but the CUDA backend was not built; install the "
          "CUDA toolkit (nvcc) and build with pip install . -C cmake.define.DLATTN_CUDA=ON");
    }
    call.fail(std::string(first_name) +
              ".device is cpu, expected cuda (= attn_backend(ATTN_BACKEND.CUDA) is in force)");
  }
  return false;
}

nb::object call_torch(const Call& call, const NamedArguments& arguments) {
  const nb::object module = nb::module_::import_("dlattn._torch");
  if (call.explanation() != nullptr) {
    const char* reason = call.needs_grad() ? "a tensor requires grad" : "attn_backend(ATTN_BACKEND.TORCH) is in force";
    return answer(call, {true, "torch", std::string("torch_") + call.op(), reason});
  }
  nb::dict keywords;
  for (const auto& [name, value] : arguments) keywords[name] = value;
  return module.attr(call.op())(**keywords);
}

nb::object answer(const Call& call, const Explanation& explanation) {
  *call.explanation() =
      nb::make_tuple(explanation.supported, explanation.backend, explanation.kernel, explanation.reason);
  return nb::none();
}

}  // namespace dlattn::py
