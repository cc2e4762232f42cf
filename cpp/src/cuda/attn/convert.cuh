// Elements as float32 and back, rounded to nearest even.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "dlattn/params.h"

namespace dlattn::cuda {

// The type of a dtype's elements.
template <DType kDType>
struct ElementOf {
  using Type = float;
};
template <>
struct ElementOf<DType::kFloat16> {
  using Type = __half;
};
template <>
struct ElementOf<DType::kBFloat16> {
  using Type = __nv_bfloat16;
};

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(__half x) { return __half2float(x); }
__device__ __forceinline__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

template <typename T>
__device__ __forceinline__ T from_float(float x) {
  if constexpr (sizeof(T) == 4) {
    return x;
  } else if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(x);
  } else {
    return __float2bfloat16_rn(x);
  }
}

// An array of floats whose dtype is known at run time.
__device__ __forceinline__ float load_float(const void* data, DType dtype, int64_t i) {
  switch (dtype) {
    case DType::kFloat16:
      return __half2float(static_cast<const __half*>(data)[i]);
    case DType::kBFloat16:
      return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[i]);
    default:
      return static_cast<const float*>(data)[i];
  }
}

__device__ __forceinline__ void store_float(void* data, DType dtype, int64_t i, float x) {
  switch (dtype) {
    case DType::kFloat16:
      static_cast<__half*>(data)[i] = __float2half_rn(x);
      break;
    case DType::kBFloat16:
      static_cast<__nv_bfloat16*>(data)[i] = __float2bfloat16_rn(x);
      break;
    default:
      static_cast<float*>(data)[i] = x;
  }
}

// Two 16-bit elements in one word, the lower first.
template <typename T>
__device__ __forceinline__ float2 unpack(uint32_t word) {
  if constexpr (std::is_same_v<T, __half>) {
    __half2 pair;
    static_assert(sizeof(pair) == sizeof(word));
    memcpy(&pair, &word, sizeof(pair));
    return __half22float2(pair);
  } else {
    return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u));
  }
}

template <typename T>
__device__ __forceinline__ uint32_t pack(float low, float high) {
  uint32_t word;
  if constexpr (std::is_same_v<T, __half>) {
    const __half2 pair = __floats2half2_rn(low, high);
    memcpy(&word, &pair, sizeof(word));
  } else {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    memcpy(&word, &pair, sizeof(word));
  }
  return word;
}

// The 4 or 8 elements of 16 bytes.
template <typename T>
__device__ __forceinline__ void unpack(const uint32_t (&words)[4], float* x) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (sizeof(T) == 4) {
      x[i] = __uint_as_float(words[i]);
    } else {
      const float2 two = unpack<T>(words[i]);
      x[2 * i] = two.x, x[2 * i + 1] = two.y;
    }
  }
}

template <typename T>
__device__ __forceinline__ void pack(const float* x, uint32_t (&words)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (sizeof(T) == 4) {
      words[i] = __float_as_uint(x[i]);
    } else {
      words[i] = pack<T>(x[2 * i], x[2 * i + 1]);
    }
  }
}

}  // namespace dlattn::cuda
