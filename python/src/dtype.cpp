// Names and sizes of dtypes.
#include "array.h"

namespace dlattn::py {

const char* dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "float32";
    case DType::kFloat16:
      return "float16";
    case DType::kBFloat16:
      return "bfloat16";
    case DType::kBool:
      return "bool";
    case DType::kInt32:
      return "int32";
    case DType::kInt64:
      return "int64";
  }
  return "unknown";
}

std::string dtype_name(const dlpack::DataType& dtype) {
  const std::string bits = std::to_string(dtype.bits);
  const std::string lanes = dtype.lanes == 1 ? "" : "x" + std::to_string(dtype.lanes);
  switch (dtype.code) {
    case dlpack::kInt:
      return "int" + bits + lanes;
    case dlpack::kUInt:
      return "uint" + bits + lanes;
    case dlpack::kFloat:
      return "float" + bits + lanes;
    case dlpack::kBfloat:
      return "bfloat" + bits + lanes;
    case dlpack::kComplex:
      return "complex" + bits + lanes;
    case dlpack::kBool:
      return "bool" + bits + lanes;
    case 10:
      return "float8_e4m3fn" + lanes;
    case 12:
      return "float8_e5m2" + lanes;
    default:
      return "DLPack type code " + std::to_string(dtype.code) + " of " + bits + " bits" + lanes;
  }
}

int64_t dtype_size(DType dtype) {
  switch (dtype) {
    case DType::kBool:
      return 1;
    case DType::kFloat16:
    case DType::kBFloat16:
      return 2;
    case DType::kInt64:
      return 8;
    default:
      return 4;
  }
}

dlpack::DataType to_dlpack(DType dtype) {
  const auto bits = static_cast<uint8_t>(8 * dtype_size(dtype));
  switch (dtype) {
    case DType::kBFloat16:
      return {dlpack::kBfloat, bits, 1};
    case DType::kBool:
      return {dlpack::kBool, bits, 1};
    case DType::kInt32:
    case DType::kInt64:
      return {dlpack::kInt, bits, 1};
    default:
      return {dlpack::kFloat, bits, 1};
  }
}

}  // namespace dlattn::py
