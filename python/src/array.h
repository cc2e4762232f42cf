// The importer: any array object -> TensorView. Nothing is converted or copied.
//
// In this order: DLPack's C exchange API of the type (torch), __dlpack__ with the right stream and max_version, the
// bits of an ml_dtypes array by __array_struct__ (NumPy exports bfloat16 by no other C protocol),
// __cuda_array_interface__.
#pragma once

#include <array>
#include <memory>
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

struct StreamOfDevice {
  uintptr_t stream = 0;
  int device = -1;
};

// 0 and 1 both name the legacy default stream.
inline bool same_stream(uintptr_t a, uintptr_t b) { return (a <= 1 ? 0 : a) == (b <= 1 ? 0 : b); }

// The stream that a framework works on now for arrays of a CUDA device, which `object` is one of.
uintptr_t current_stream(Producer& producer, nb::handle object, int device);

// Tensors taken out of DLPack capsules, for whoever needs them longer than Python code runs; freed without the GIL.
class DlpackTensors {
 public:
  DlpackTensors() = default;
  DlpackTensors(const DlpackTensors&) = delete;
  DlpackTensors& operator=(const DlpackTensors&) = delete;
  ~DlpackTensors();

  void take(nb::handle object);  // nothing if it is no fresh DLPack capsule

 private:
  std::vector<dlpack::ManagedTensor*> plain_;
  std::vector<dlpack::ManagedTensorVersioned*> versioned_;
};

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

  // The call's stream is not the one that the framework of `object`, a CUDA array of `device`, works on.
  bool on_another_stream(nb::handle object, int device) const;

  bool on_cuda() const { return device_ >= 0; }

  // A JAX array in CUDA memory among the arguments, one element of it; not given(): there is none. See jax.h.
  const TensorView& jax_element() const { return jax_element_; }
  // Results that finish() hands to JAX.
  void expect_jax_result() { ++num_jax_results_; }
  bool has_jax_results() const { return num_jax_results_ > 0; }

  // A torch tensor among the inputs requires grad and grad mode is on.
  bool needs_grad() const { return !needs_grad_.empty(); }
  const std::string& needs_grad_name() const { return needs_grad_; }

  // After the work that writes the outputs is done or queued. Torch's autograd keeps count of writes, to find saved
  // tensors that have changed; and arrays of other frameworks than the first one's are worked on by other streams.
  void tell_writes() const {
    if (num_torch_outputs_ > 0) tell_torch();
    if (num_waiting_ > 0) order_outputs();
  }

  // explain() wants an answer instead of a run.
  nb::object* explanation() const { return explanation_; }

  // Keep an object alive until the call is over.
  void keep(nb::object object);

  // All DLPack tensors of this call, to live longer than it.
  std::shared_ptr<DlpackTensors> take_tensors();

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

  // A producer's array is ready on `stream`: takes it for the call's stream if there is none yet, else orders the two.
  void use_stream(const Argument& argument, uintptr_t stream, int device);
  void order_outputs() const;

  const char* op_;
  nb::object* explanation_;
  std::string needs_grad_;  // the first input that does; empty: none
  bool stream_known_ = false;
  bool stream_given_ = false;  // by the caller
  uintptr_t stream_ = 0;
  int device_ = -1;              // of the last CUDA array; -1: none yet
  StreamOfDevice last_ordered_;  // the call's stream waits for it already
  int num_kept_ = 0;
  std::array<PyObject*, 12> kept_;
  std::vector<nb::object> more_kept_;
  static constexpr int kMaxOutputs = 4;  // of the caller; no operation writes more
  int num_torch_outputs_ = 0;
  std::array<PyObject*, kMaxOutputs> torch_outputs_;
  int num_jax_results_ = 0;
  TensorView jax_element_;
  std::shared_ptr<DlpackTensors> tensors_;
  int num_waiting_ = 0;
  std::array<StreamOfDevice, kMaxOutputs> waiting_;  // streams on which given outputs are read next
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
