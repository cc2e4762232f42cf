#include "jax.h"

#include <algorithm>

#include "dlattn/runtime.h"
#include "options.h"

namespace dlattn::py {

namespace {

// What jax.dlpack.from_dlpack() is given.
struct JaxResult {
  TensorView view;
  Stream stream;  // of the work that writes it
  std::shared_ptr<DlpackTensors> tensors;
};

struct Exported {
  dlpack::ManagedTensor managed{};
  TensorView view;
  std::shared_ptr<DlpackTensors> tensors;
};

void delete_exported(dlpack::ManagedTensor* managed) { delete static_cast<Exported*>(managed->context); }

void delete_unused(PyObject* capsule) {
  if (!PyCapsule_IsValid(capsule, "dltensor")) return;  // somebody has taken it over
  delete_exported(static_cast<dlpack::ManagedTensor*>(PyCapsule_GetPointer(capsule, "dltensor")));
}

nb::object export_result(const JaxResult& result, const nb::kwargs& keywords) {
  const nb::object stream = keywords.attr("get")("stream");
  if (stream.is_none()) throw nb::buffer_error("a result of dlattn needs the stream that is to wait for it");
  const auto handle = nb::cast<int64_t>(stream);
  if (handle != -1) {
    cuda_order_streams(result.view.device.index, result.stream,
                       reinterpret_cast<Stream>(static_cast<uintptr_t>(handle)));
  }
  auto exported = std::make_unique<Exported>();
  exported->view = result.view;
  exported->tensors = result.tensors;
  exported->managed.context = exported.get();
  exported->managed.deleter = delete_exported;
  dlpack::Tensor& tensor = exported->managed.tensor;
  tensor.data = result.view.data;
  tensor.device = {dlpack::kCUDA, result.view.device.index};
  tensor.ndim = result.view.ndim;
  tensor.dtype = to_dlpack(result.view.dtype);
  tensor.shape = exported->view.shape;
  tensor.strides = exported->view.strides;
  nb::object capsule = nb::steal(PyCapsule_New(&exported->managed, "dltensor", delete_unused));
  if (!capsule.is_valid()) nb::raise_python_error();
  exported.release();
  return capsule;
}

}  // namespace

nb::object to_jax(Call& call, const TensorView& view) {
  const nb::object result = nb::cast(JaxResult{view, call.stream(), call.take_tensors()});
  const nb::object imported = nb::module_::import_("jax.dlpack").attr("from_dlpack")(result);
  return nb::module_::import_("jax.numpy").attr("array")(imported, nb::arg("copy") = true);
}

void keep_for_jax(Call& call) { to_jax(call, call.jax_element()); }

void register_jax(nb::module_& m) {
  nb::class_<JaxResult>(m, "_JaxResult")
      .def("__dlpack__", export_result)
      .def("__dlpack_device__", [](const JaxResult& result) {
        return nb::make_tuple(static_cast<int>(dlpack::kCUDA), result.view.device.index);
      });
}

}  // namespace dlattn::py
