// The importer: any array object -> TensorView. Nothing is converted or copied.
//
// In this order: DLPack's C exchange API of the type (torch), __dlpack__ with the right stream and max_version, the
// bits of an ml_dtypes array by __array_struct__ (NumPy exports bfloat16 by no other C protocol),
// __cuda_array_interface__.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "dlattn/attention.h"
#include "dlattn/error.h"
#include "dlattn/tensor_view.h"
#include "dlpack.h"
#include "producer.h"
#include "py.h"

namespace dlattn::py {

// What an argument is for; decides which dtypes a message names.
enum class Role : uint8_t { kData, kTable, kMask, kIndex };

// One call of a public function: imports its arrays, keeps them alive until it is gone, and knows the stream.
class Call {
 public:
  // `stream`: None, an int or an object with __cuda_stream__.
  Call(const char* op, nb::handle stream);
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  ~Call();

  const char* op() const { return op_; }

  TensorView input(const char* name, nb::handle object, Role role = Role::kData);
  // None gives a view that is not given().
  TensorView optional_input(const char* name, nb::handle object, Role role = Role::kData) {
    return object.is_none() ? TensorView() : input(name, object, role);
  }
  // An array to be written.
  TensorView output(const char* name, nb::handle object, Role role = Role::kData);

  // The stream that CUDA work of this call belongs on; null for the CPU.
  Stream stream() const { return reinterpret_cast<Stream>(stream_known_ ? stream_ : 0); }

  // A torch tensor among the inputs requires grad and grad mode is on.
  bool needs_grad() const { return !needs_grad_.empty(); }
  const std::string& needs_grad_name() const { return needs_grad_; }

  // After the outputs are written: torch's autograd keeps count of writes, to find saved tensors that have changed.
  void tell_writes() const {
    if (num_torch_outputs_ > 0) tell_torch();
  }

  // explain() wants an answer instead of a run.
  nb::object* explanation() const { return explanation_; }

  // Keep an object alive until the call is over.
  void keep(nb::object object);

  [[noreturn]] void fail(const std::string& text) const;  // InvalidArgument("<op>: <text>")

 private:
  friend class ExplainScope;

  // The argument that is being imported.
  struct Argument {
    const char* name;
    nb::handle object;
    Role role;
    bool writable;
    Producer* producer;
  };
  TensorView import(Argument argument);
  void check_torch(const Argument& argument);
  void tell_torch() const;
  void fail_if_odd_dtype(const Argument& argument) const;
  TensorView from_exchange_api(const Argument& argument);
  TensorView from_dlpack(const Argument& argument);
  TensorView from_capsule(const Argument& argument, nb::object capsule);
  TensorView from_array_struct(const Argument& argument, bool is_bfloat16);
  TensorView from_cuda_array_interface(const Argument& argument);
  TensorView from_tensor(const Argument& argument, const dlpack::Tensor& tensor, bool read_only);
  void check(const Argument& argument, TensorView& view) const;
  nb::object export_capsule(const Argument& argument, bool with_stream, int64_t stream);
  uintptr_t stream_of(const Argument& argument);

  const char* op_;
  nb::object* explanation_;
  std::string needs_grad_;  // the first input that does; empty: none
  bool stream_known_ = false;
  uintptr_t stream_ = 0;
  int num_kept_ = 0;
  std::array<PyObject*, 12> kept_;
  std::vector<nb::object> more_kept_;
  int num_torch_outputs_ = 0;
  std::array<PyObject*, 4> torch_outputs_;  // the caller's; no operation writes more
};

// While alive, the next Call only explains itself. See explain() in runtime.cpp.
class ExplainScope {
 public:
  explicit ExplainScope(nb::object* result);
  ~ExplainScope();
};

// The stream argument of a Python function as a CUDA handle; false: None.
bool parse_stream(const char* op, nb::handle object, uintptr_t* stream);

const char* dtype_name(DType dtype);
std::string dtype_name(const dlpack::DataType& dtype);
int64_t dtype_size(DType dtype);
dlpack::DataType to_dlpack(DType dtype);

}  // namespace dlattn::py
