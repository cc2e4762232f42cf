// Matrix products of a warp group (4 warps), d [64, N] = a [64, 16] b [16, N] or d += a b in float32: b in shared memory, a there
// or in registers. They run while the warps go on. Thread 32 w + 4 g + t of the group holds:
//   a  a[0] (row 16 w + g, columns 2t, 2t + 1), a[1] (row + 8), a[2] (column + 8), a[3] (both): as in mma_sync.cuh
//   d  d[4 j + 2 i + e] (row 16 w + g + 8 i, column 8 j + 2 t + e)
//
// In shared memory an operand is panels of rows of 128 bytes, as tensor maps with 128-byte swizzle make them: a panel starts on a
// multiple of 1024 bytes, and the 16-byte chunk c of its row r lies at chunk c ^ (r % 8). A row holds
//   a; b if kTransposeB = false: 64 elements of a row of a, of a column of b: four products take 16 each
//   b if kTransposeB = true:     64 elements of a row of b, which goes on in the same row of the next panel
// An operand may start at any row and at chunk 0, 2, 4 or 6; transposed, at a row that is a multiple of 8, at chunk 0.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace dlattn::cuda::ptx {

// Of an operand that starts at `address`; the one that starts n bytes further has the descriptor + n / 16. leading_bytes: from
// one panel to the next, which only matters if kTransposeB and N > 64.
// PTX ISA, "Asynchronous warpgroup level matrix instructions: matrix descriptor"; sm_90a.
__device__ __forceinline__ uint64_t wgmma_descriptor(uint32_t address, uint32_t leading_bytes) {
  constexpr uint64_t kEightRows = 1024 >> 4, kSwizzle128 = 1;
  return (address & 0x3ffff) >> 4 | static_cast<uint64_t>(leading_bytes >> 4) << 16 | kEightRows << 32 |
         kSwizzle128 << 62;
}

// Before the first product whose registers, of a or d, other instructions have touched. PTX ISA, "wgmma.fence"; sm_90a.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// Closes the group of the products since the last one. PTX ISA, "wgmma.commit_group"; sm_90a.
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// All but the last `kGroups` groups are done. PTX ISA, "wgmma.wait_group"; sm_90a.
template <int kGroups>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kGroups) : "memory");
}

// After wgmma_wait(): keeps the compiler from moving what is done with d before it. No instruction. Not a loop over references,
// with which ptxas 13.0 takes d for read while products run, and serializes them (C7514).
template <int kCount>
__device__ __forceinline__ void wgmma_pin(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// A copy of one of d, for a shuffle: for a shuffle of d itself ptxas 13.0 serializes the products (C7511). No instruction.
__device__ __forceinline__ float wgmma_copy(float x) {
  asm volatile("" : "+f"(x));
  return x;
}

// d = a b, plus d if `accumulate`; rs: a in registers; ss: a and b as descriptors. T: __half or __nv_bfloat16, kColumns: N, of
// those below. Memory is ordered by the fences before a product and the wait after it. PTX ISA, "wgmma.mma_async"; sm_90a.
template <typename T, int kColumns, bool kTransposeB>
struct Wgmma;

// DLATTN_LIST_<n>(X): X(1) X(2) ... X(n - 1), of which X makes all but the first of a list, comma included.
// clang-format off
#define DLATTN_LIST_16(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15)
#define DLATTN_LIST_24(X) DLATTN_LIST_16(X) X(16) X(17) X(18) X(19) X(20) X(21) X(22) X(23)
#define DLATTN_LIST_32(X) DLATTN_LIST_24(X) X(24) X(25) X(26) X(27) X(28) X(29) X(30) X(31)
#define DLATTN_LIST_40(X) DLATTN_LIST_32(X) X(32) X(33) X(34) X(35) X(36) X(37) X(38) X(39)
#define DLATTN_LIST_48(X) DLATTN_LIST_40(X) X(40) X(41) X(42) X(43) X(44) X(45) X(46) X(47)
#define DLATTN_LIST_56(X) DLATTN_LIST_48(X) X(48) X(49) X(50) X(51) X(52) X(53) X(54) X(55)
#define DLATTN_LIST_64(X) DLATTN_LIST_56(X) X(56) X(57) X(58) X(59) X(60) X(61) X(62) X(63)
#define DLATTN_LIST_72(X) DLATTN_LIST_64(X) X(64) X(65) X(66) X(67) X(68) X(69) X(70) X(71)
#define DLATTN_LIST_80(X) DLATTN_LIST_72(X) X(72) X(73) X(74) X(75) X(76) X(77) X(78) X(79)
#define DLATTN_LIST_88(X) DLATTN_LIST_80(X) X(80) X(81) X(82) X(83) X(84) X(85) X(86) X(87)
#define DLATTN_LIST_96(X) DLATTN_LIST_88(X) X(88) X(89) X(90) X(91) X(92) X(93) X(94) X(95)
#define DLATTN_LIST_104(X) DLATTN_LIST_96(X) X(96) X(97) X(98) X(99) X(100) X(101) X(102) X(103)
#define DLATTN_LIST_112(X) DLATTN_LIST_104(X) X(104) X(105) X(106) X(107) X(108) X(109) X(110) X(111)
#define DLATTN_LIST_120(X) DLATTN_LIST_112(X) X(112) X(113) X(114) X(115) X(116) X(117) X(118) X(119)
#define DLATTN_LIST_128(X) DLATTN_LIST_120(X) X(120) X(121) X(122) X(123) X(124) X(125) X(126) X(127)
// clang-format on
#define DLATTN_NUMBER(i) ", %" #i
#define DLATTN_REGISTER(i) , "+f"(d[i])

// One N: n; r registers of d, so that operand r is b; then the numbers of the operands accumulate, transpose and a.
// clang-format off
#define DLATTN_WGMMA_OF(T, kType, n, r, accumulate_, transpose_, a0, a1, a2, a3)                                       \
template <bool kTransposeB>                                                                                            \
struct Wgmma<T, n, kTransposeB> {                                                                                      \
  static __device__ __forceinline__ void rs(float (&d)[r], const uint32_t (&a)[4], uint64_t b, bool accumulate) {      \
    asm volatile(                                                                                                      \
        "{\n"                                                                                                          \
        ".reg .pred accumulate;\n"                                                                                     \
        "setp.ne.b32 accumulate, %" #accumulate_ ", 0;\n"                                                              \
        "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." kType "." kType " {%0" DLATTN_LIST_##r(DLATTN_NUMBER) "},"   \
        " {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #r ", accumulate, 1, 1, %" #transpose_ ";\n"                    \
        "}"                                                                                                            \
        : "+f"(d[0]) DLATTN_LIST_##r(DLATTN_REGISTER)                                                                  \
        : "l"(b), "r"(static_cast<int>(accumulate)), "n"(static_cast<int>(kTransposeB)),                               \
          "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]));                                                                 \
  }                                                                                                                    \
  static __device__ __forceinline__ void ss(float (&d)[r], uint64_t a, uint64_t b, bool accumulate) {                  \
    asm volatile(                                                                                                      \
        "{\n"                                                                                                          \
        ".reg .pred accumulate;\n"                                                                                     \
        "setp.ne.b32 accumulate, %" #accumulate_ ", 0;\n"                                                              \
        "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." kType "." kType " {%0" DLATTN_LIST_##r(DLATTN_NUMBER) "},"   \
        " %" #a0 ", %" #r ", accumulate, 1, 1, 0, %" #transpose_ ";\n"                                                 \
        "}"                                                                                                            \
        : "+f"(d[0]) DLATTN_LIST_##r(DLATTN_REGISTER)                                                                  \
        : "l"(b), "r"(static_cast<int>(accumulate)), "n"(static_cast<int>(kTransposeB)), "l"(a));                      \
  }                                                                                                                    \
};
// clang-format on
#define DLATTN_WGMMA(...)                     \
  DLATTN_WGMMA_OF(__half, "f16", __VA_ARGS__) \
  DLATTN_WGMMA_OF(__nv_bfloat16, "bf16", __VA_ARGS__)

DLATTN_WGMMA(64, 32, 33, 34, 35, 36, 37, 38)
DLATTN_WGMMA(80, 40, 41, 42, 43, 44, 45, 46)
DLATTN_WGMMA(96, 48, 49, 50, 51, 52, 53, 54)
DLATTN_WGMMA(112, 56, 57, 58, 59, 60, 61, 62)
DLATTN_WGMMA(128, 64, 65, 66, 67, 68, 69, 70)
DLATTN_WGMMA(192, 96, 97, 98, 99, 100, 101, 102)
DLATTN_WGMMA(256, 128, 129, 130, 131, 132, 133, 134)

#undef DLATTN_LIST_16
#undef DLATTN_LIST_24
#undef DLATTN_LIST_32
#undef DLATTN_LIST_40
#undef DLATTN_LIST_48
#undef DLATTN_LIST_56
#undef DLATTN_LIST_64
#undef DLATTN_LIST_72
#undef DLATTN_LIST_80
#undef DLATTN_LIST_88
#undef DLATTN_LIST_96
#undef DLATTN_LIST_104
#undef DLATTN_LIST_112
#undef DLATTN_LIST_120
#undef DLATTN_LIST_128
#undef DLATTN_NUMBER
#undef DLATTN_REGISTER
#undef DLATTN_WGMMA_OF
#undef DLATTN_WGMMA

}  // namespace dlattn::cuda::ptx
