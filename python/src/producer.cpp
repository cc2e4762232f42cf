#include "producer.h"

#include <unordered_map>

namespace dlattn::py {

namespace {

bool is_subclass(nb::handle type, const char* module_name, std::initializer_list<const char*> path) {
  nb::handle module = loaded_module(module_name);
  if (!module.is_valid()) return false;
  nb::object found = nb::borrow(module);
  for (const char* name : path) {
    found = nb::steal(PyObject_GetAttrString(found.ptr(), name));
    if (!found.is_valid()) {  // half-imported, or another version of the module
      clear_ordinary_error();
      return false;
    }
  }
  const int result = PyObject_IsSubclass(type.ptr(), found.ptr());
  if (result < 0) clear_ordinary_error();
  return result > 0;
}

Framework framework_of(nb::handle type) {
  if (is_subclass(type, "numpy.ma", {"MaskedArray"})) return Framework::kNumPyMasked;
  if (is_subclass(type, "numpy", {"ndarray"})) return Framework::kNumPy;
  if (is_subclass(type, "torch", {"Tensor"})) return Framework::kTorch;
  if (is_subclass(type, "jax", {"core", "Tracer"})) return Framework::kJaxTracer;
  if (is_subclass(type, "jax", {"Array"})) return Framework::kJax;
  const std::string module = nb::cast<std::string>(nb::str(nb::getattr(type, "__module__", nb::str(""))));
  if (module.rfind("jaxlib", 0) == 0) return Framework::kJax;  // jax.Array recognises by isinstance only
  if (is_subclass(type, "cupy", {"ndarray"})) return Framework::kCuPy;
  if (module.rfind("numba", 0) == 0) return Framework::kNumba;
  return Framework::kOther;
}

const dlpack::ExchangeApi* exchange_api_of(nb::handle type) {
  const nb::object capsule = get_or_null(type, names().exchange_api);
  if (!capsule.is_valid() || !PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api")) return nullptr;
  auto* header = static_cast<dlpack::ExchangeHeader*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  while (header != nullptr && header->version.major != dlpack::kMajor) header = header->previous;
  return reinterpret_cast<const dlpack::ExchangeApi*>(header);
}

void fill(Producer& producer, nb::handle type) {
  producer.type = nb::borrow(type);
  producer.framework = framework_of(type);
  producer.api = exchange_api_of(type);
  producer.has_dlpack = get_or_null(type, names().dlpack).is_valid();
  producer.has_cuda_interface = get_or_null(type, names().cuda_array_interface).is_valid();
}

}  // namespace

Producer& producer_of(nb::handle object) {
  static auto& cache = *new std::unordered_map<PyObject*, Producer>();  // never destroyed: Python may be gone by then
  static Producer* last = nullptr;
  PyObject* type = reinterpret_cast<PyObject*>(Py_TYPE(object.ptr()));
  if (last != nullptr && last->type.ptr() == type) return *last;
  auto found = cache.find(type);
  if (found == cache.end()) {
    Producer fresh;  // filled first: looking up attributes may run Python code that comes here again
    fill(fresh, type);
    found = cache.emplace(type, std::move(fresh)).first;
  }
  return *(last = &found->second);
}

}  // namespace dlattn::py
