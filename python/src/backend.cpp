#include "backend.h"

#include <unistd.h>

#include "dlattn/error.h"
#include "dlattn/runtime.h"

namespace dlattn::py {

namespace {

// ATTN_BACKEND of python/dlattn/_backend.py.
enum class BackendChoice : int { kAuto = 0, kCPU = 1, kCUDA = 2, kTorch = 3 };

PyObject* g_backend_variable = nullptr;  // a ContextVar of int; null until attn_backend() is first entered

BackendChoice current_backend() {
  if (g_backend_variable == nullptr) return BackendChoice::kAuto;
  return static_cast<BackendChoice>(nb::cast<int>(nb::handle(g_backend_variable).attr("get")()));
}

// At exit Python ends a thread that asks for the GIL: by pthread_exit (before 3.14), which unwinds the stack, and what
// it meets there on the way (functions that do not throw) would end the whole process. Such a thread waits here
// instead, until the process is gone. It cannot be known beforehand: Python may begin to exit while the thread waits
// for the GIL.
void acquire_gil(PyThreadState* state) {
  struct WaitIfUnwound {
    bool done = false;
    ~WaitIfUnwound() {
      while (!done) pause();
    }
  } guard;
  PyEval_RestoreThread(state);
  guard.done = true;
}

}  // namespace

ReleasedGil::~ReleasedGil() { acquire_gil(state_); }

void use_backend_variable(nb::object context_variable) {
  if (g_backend_variable == nullptr) g_backend_variable = context_variable.release().ptr();
}

Route route_of(const Call& call, const TensorView& first, const char* first_name) {
  Route route;
  const BackendChoice choice = current_backend();
  if (choice == BackendChoice::kTorch || (choice == BackendChoice::kAuto && call.needs_grad())) {
    route.torch = true;
    return route;
  }
  if (choice == BackendChoice::kAuto) return route;
  const bool on_cpu = first.device.type == DeviceType::kCPU;
  route.backend = choice == BackendChoice::kCPU ? "cpu" : "cuda";
  if (call.needs_grad()) {
    route.refusal = call.needs_grad_name() +
                    " requires grad, expected no gradients (= the CPU and CUDA backends are forward only; use "
                    "torch.no_grad(), or ATTN_BACKEND.AUTO or TORCH)";
  } else if (choice == BackendChoice::kCPU && !on_cpu) {
    route.refusal = std::string(first_name) + ".device is cuda:" + std::to_string(first.device.index) +
                    ", expected cpu (= attn_backend(ATTN_BACKEND.CPU) is in force)";
  } else if (choice == BackendChoice::kCUDA && on_cpu && !cuda_compiled()) {
    route.not_compiled = true;
    route.refusal =
        "attn_backend(ATTN_BACKEND.CUDA) is in force, but the CUDA backend was not built; install the CUDA toolkit "
        "(nvcc) and build with pip install . --config-settings=cmake.define.DLATTN_CUDA=ON";
  } else if (choice == BackendChoice::kCUDA && on_cpu) {
    route.refusal =
        std::string(first_name) + ".device is cpu, expected cuda (= attn_backend(ATTN_BACKEND.CUDA) is in force)";
  }
  return route;
}

void refuse(const Call& call, const Route& route) {
  if (route.not_compiled) throw NotCompiled(std::string(call.op()) + ": " + route.refusal);
  call.fail(route.refusal);
}

nb::object call_torch(const Call& call, const NamedArguments& arguments) {
  const nb::object module = nb::module_::import_("dlattn._torch");
  nb::dict keywords;
  for (const auto& [name, value] : arguments) keywords[name] = value;
  return module.attr(call.op())(**keywords);
}

nb::object answer(const Call& call, const Explanation& explanation) {
  *call.explanation() =
      nb::make_tuple(explanation.supported, explanation.backend, explanation.kernel, explanation.reason);
  return nb::none();
}

nb::object answer_torch(const Call& call) {
  const char* reason = call.needs_grad() ? "a tensor requires grad" : "attn_backend(ATTN_BACKEND.TORCH) is in force";
  return answer(call, {true, "torch", std::string("torch_") + call.op(), reason});
}

bool cuda_compiled() {
  static const bool compiled = info().cuda_compiled;
  return compiled;
}

void not_compiled(const Call& call, const Explanation& explanation) {
  throw NotCompiled(std::string(call.op()) + ": " + explanation.reason);
}

}  // namespace dlattn::py
