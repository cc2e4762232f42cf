// DLPack's binary interface, version 1: https://dmlc.github.io/dlpack/latest/c_api.html
// Declared here because nothing needs to be built against for it; a test compares it with the header inside PyTorch.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dlattn::dlpack {

constexpr uint32_t kMajor = 1, kMinor = 1;  // what we ask producers for: 1.1 has the flags that we read

enum DeviceCode : int32_t { kCPU = 1, kCUDA = 2, kCUDAHost = 3, kCUDAManaged = 13 };
enum TypeCode : uint8_t { kInt = 0, kUInt = 1, kFloat = 2, kBfloat = 4, kComplex = 5, kBool = 6 };
constexpr uint64_t kFlagReadOnly = 1;

struct Version {
  uint32_t major, minor;
};

struct DeviceId {
  int32_t type, index;
};

struct DataType {
  uint8_t code, bits;
  uint16_t lanes;
};

struct Tensor {
  void* data;
  DeviceId device;
  int32_t ndim;
  DataType dtype;
  int64_t* shape;
  int64_t* strides;  // elements; null means C-contiguous (before 1.2)
  uint64_t byte_offset;
};

// Before 1.0; capsule "dltensor".
struct ManagedTensor {
  Tensor tensor;
  void* context;
  void (*deleter)(ManagedTensor*);
};

// Capsule "dltensor_versioned".
struct ManagedTensorVersioned {
  Version version;
  void* context;
  void (*deleter)(ManagedTensorVersioned*);
  uint64_t flags;
  Tensor tensor;
};

// The C exchange API: a capsule "dlpack_exchange_api" in the attribute __dlpack_c_exchange_api__ of an array type.
// Functions return 0, or -1 with a Python exception set.
struct ExchangeHeader {
  Version version;
  ExchangeHeader* previous;  // an older table, or null
};

struct ExchangeApi {
  ExchangeHeader header;
  int (*allocate)(Tensor* prototype, ManagedTensorVersioned** out, void* error_context,
                  void (*set_error)(void* error_context, const char* kind, const char* message));
  int (*managed_from_object)(void* object, ManagedTensorVersioned** out);
  int (*object_from_managed)(ManagedTensorVersioned* tensor, void** object);  // takes the tensor over
  int (*tensor_from_object)(void* object, Tensor* out);                       // may be null; owns nothing
  int (*current_stream)(int32_t device_type, int32_t device_index, void** stream);
};

static_assert(sizeof(void*) == 8, "layouts below are those of 64-bit systems");
static_assert(sizeof(Tensor) == 48 && offsetof(Tensor, device) == 8 && offsetof(Tensor, ndim) == 16 &&
              offsetof(Tensor, dtype) == 20 && offsetof(Tensor, shape) == 24 && offsetof(Tensor, strides) == 32 &&
              offsetof(Tensor, byte_offset) == 40);
static_assert(sizeof(ManagedTensor) == 64 && offsetof(ManagedTensor, context) == 48 &&
              offsetof(ManagedTensor, deleter) == 56);
static_assert(sizeof(ManagedTensorVersioned) == 80 && offsetof(ManagedTensorVersioned, context) == 8 &&
              offsetof(ManagedTensorVersioned, deleter) == 16 && offsetof(ManagedTensorVersioned, flags) == 24 &&
              offsetof(ManagedTensorVersioned, tensor) == 32);
static_assert(sizeof(ExchangeApi) == 56 && offsetof(ExchangeApi, allocate) == 16 &&
              offsetof(ExchangeApi, managed_from_object) == 24 && offsetof(ExchangeApi, object_from_managed) == 32 &&
              offsetof(ExchangeApi, tensor_from_object) == 40 && offsetof(ExchangeApi, current_stream) == 48);

}  // namespace dlattn::dlpack
