// The opposite of ldmatrix.cuh: four 8 x 8 matrices of 16-bit elements to shared memory. Lane l gives the address of row l % 8 of
// matrix l / 8 (16 bytes, on a multiple of 16) and in r[i] the two elements of matrix i at row g, columns 2t, 2t + 1
// (l = 4 g + t).
#pragma once

#include <cstdint>

namespace dlattn::cuda::ptx {

// PTX ISA, "Warp-level matrix store instruction: stmatrix"; sm_90.
__device__ __forceinline__ void stmatrix_x4(uint32_t address, const uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r[0]), "r"(r[1]),
               "r"(r[2]), "r"(r[3])
               : "memory");
}

}  // namespace dlattn::cuda::ptx
