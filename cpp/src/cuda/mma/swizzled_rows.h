// How rows of 16-bit elements lie in shared memory: the 16-byte chunks of a row change places, by the row's number, so that the
// same chunk of eight rows lies in eight different groups of banks. Not by padding: cp.async would ask for a 32-byte sector twice
// whose halves go to different 128-byte lines.
#pragma once

#include <cstdint>

#include "host_device.h"

namespace dlattn::cuda {

template <int kHeadDim>
struct SwizzledRows {
  static constexpr int kBytes = 2 * kHeadDim;  // of a row; the first one starts at a multiple of 128
  static constexpr bool kWide = kHeadDim % 64 == 0;
  static constexpr int kMask = kWide ? 127 : 63;  // chunks change places within 128 or 64 bytes
  static_assert(kHeadDim % 32 == 0);

  // Where chunk `chunk` of a row is, in bytes.
  static DLATTN_HOST_DEVICE int offset(int row, int chunk) {
    return row * kBytes + ((chunk ^ (kWide ? row & 7 : row >> 1 & 3)) << 4);
  }
  // From chunk 0 of a row, at `address`, to the chunk `bytes` behind it; from chunk 1, if `bytes` is a multiple of 32.
  static DLATTN_HOST_DEVICE uint32_t behind(uint32_t address, int bytes) {
    return (address ^ static_cast<uint32_t>(bytes & kMask)) + static_cast<uint32_t>(bytes & ~kMask);
  }
};

}  // namespace dlattn::cuda
