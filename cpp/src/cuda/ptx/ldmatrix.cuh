// Four 8 x 8 matrices of 16-bit elements from shared memory: lane l gives the address of row l % 8 of matrix l / 8 (16 bytes, on
// a multiple of 16) and gets in r[i] the two elements of matrix i at row g, columns 2t, 2t + 1 (l = 4 g + t); transposed: at
// rows 2t, 2t + 1, column g.
#pragma once

#include <cstdint>

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 750
#error "ldmatrix needs sm_75"
#endif

namespace dlattn::cuda::ptx {

// The address that instructions on shared memory take.
__device__ __forceinline__ uint32_t smem_address(const void* smem) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(smem));
}

// PTX ISA, "Warp-level matrix load instruction: ldmatrix"; sm_75.
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// The same, transposed.
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

}  // namespace dlattn::cuda::ptx
