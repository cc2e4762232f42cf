// rotary_any -- rotary embedding and writes into a paged cache: any GPU, dtype, head_dim <= 256, stride.
//   computes  x'[a] = x[a] cos - x[b] sin, x'[b] = x[b] cos + x[a] sin in float32, rounded once; copies keep their bits
//   work      an item a thread: one piece (16 bytes, or 2 elements where rows are not aligned) of two heads of q, k or
//             v of a token; pieces of a row, then heads, then tokens are neighbours. What becomes of it (rotated or
//             copied; to an output, a cache slot or both) is found at run time. Small blocks, no loop
//   roles     a block has items of q, of k or of v; each of its 128 threads reads all that it writes first, so an
//             output may be its input
//   smem      none: the angles come from the L1 and L2 caches
//   sync      none
//   assumes   16-byte pieces: aligned rows, rotary_dim and head_dim multiples of 16 bytes. Positions and slots may be
//             anything: outside the table the token's rows become NaN, outside the cache nothing is written
//   elsewhere grid and arguments: rotary_args.h; instances and launch: rotary.cu
//   checked   tests_cpp/ops/test_rotary_cuda.cpp; speed: docs/kernels/simt.md
#pragma once

#include <cstdint>

#include "cuda/any/rotary_args.h"
#include "cuda/attn/convert.cuh"
#include "element.h"

namespace dlattn::cuda {
namespace rotary_pieces {

constexpr uint32_t kNaN = 0x7fffffffu;  // of float32; of two float16 or bfloat16 with 0x7fff

// 16 bytes of a row: two runs of 8 bytes if split, else one of 16, so that a warp's store covers whole 32-byte sectors.
// (32 contiguous bytes of a lane stored as 16 and 16 were 2.7 times slower at 65536 tokens, H200.) Addresses are bytes:
// with element indices nvcc 13.0 takes the vector stores apart.
template <typename T, bool kSplitInTwo>
struct VectorPiece {
  using Element = T;
  static constexpr int kPairs = 8 / static_cast<int>(sizeof(T));
  static constexpr bool kSplit = kSplitInTwo;

  uint32_t words[4];

  __device__ __forceinline__ void load(const char* first, const RotaryPiece& at) {
    if constexpr (kSplit) {
      const uint2 low = *reinterpret_cast<const uint2*>(first);
      const uint2 high = *reinterpret_cast<const uint2*>(first + at.distance * static_cast<int>(sizeof(T)));
      words[0] = low.x, words[1] = low.y, words[2] = high.x, words[3] = high.y;
    } else {
      const uint4 all = *reinterpret_cast<const uint4*>(first);
      words[0] = all.x, words[1] = all.y, words[2] = all.z, words[3] = all.w;
    }
  }

  __device__ __forceinline__ void store(char* first, const RotaryPiece& at) const {
    if constexpr (kSplit) {
      *reinterpret_cast<uint2*>(first) = make_uint2(words[0], words[1]);
      *reinterpret_cast<uint2*>(first + at.distance * static_cast<int>(sizeof(T))) = make_uint2(words[2], words[3]);
    } else {
      *reinterpret_cast<uint4*>(first) = make_uint4(words[0], words[1], words[2], words[3]);
    }
  }

  __device__ __forceinline__ void to_floats(float (&x)[2 * kPairs]) const { unpack<T>(words, x); }
  __device__ __forceinline__ void from_floats(const float (&x)[2 * kPairs]) { pack<T>(x, words); }
  __device__ __forceinline__ void set_nan() {
    constexpr uint32_t kWord = sizeof(T) == 4 ? kNaN : 0x7fff7fffu;
#pragma unroll
    for (uint32_t& word : words) word = kWord;
  }
};

// Two elements of a row that need no alignment.
template <typename T>
struct ScalarPiece {
  using Element = T;
  static constexpr int kPairs = 1;
  static constexpr bool kSplit = false;  // one pair is the same either way

  T elements[2];

  __device__ __forceinline__ void load(const char* first, const RotaryPiece& at) {
    const T* row = reinterpret_cast<const T*>(first);
    elements[0] = row[0];
    if (at.whole) elements[1] = row[at.distance];
  }

  __device__ __forceinline__ void store(char* first, const RotaryPiece& at) const {
    T* row = reinterpret_cast<T*>(first);
    row[0] = elements[0];
    if (at.whole) row[at.distance] = elements[1];
  }

  __device__ __forceinline__ void to_floats(float (&x)[2]) const {
    x[0] = to_float(elements[0]), x[1] = to_float(elements[1]);
  }
  __device__ __forceinline__ void from_floats(const float (&x)[2]) {
    elements[0] = from_float<T>(x[0]), elements[1] = from_float<T>(x[1]);
  }
  __device__ __forceinline__ void set_nan() {
    const float x[2] = {__uint_as_float(kNaN), __uint_as_float(kNaN)};
    from_floats(x);
  }
};

// The angles of one piece. Aligned if kPairs > 1.
template <int kPairs>
struct Angles {
  float cos[kPairs], sin[kPairs];

  __device__ __forceinline__ void set_nan() {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) cos[i] = sin[i] = __uint_as_float(kNaN);
  }

  __device__ __forceinline__ void load(const RotaryArgs& args, int64_t batch, int64_t row, uint32_t piece) {
    const auto column = piece * static_cast<uint32_t>(args.table_piece_bytes);
    const char* cos_at = args.cos + batch * args.cos_stride_batch + row * args.cos_stride_seq + column;
    const char* sin_at = args.sin + batch * args.sin_stride_batch + row * args.sin_stride_seq + column;
    if (args.table_dtype == DType::kFloat32) {
      struct alignas(4 * kPairs) Run {
        float x[kPairs];
      };
      const Run c = *reinterpret_cast<const Run*>(cos_at), s = *reinterpret_cast<const Run*>(sin_at);
#pragma unroll
      for (int i = 0; i < kPairs; ++i) cos[i] = c.x[i], sin[i] = s.x[i];
    } else {
      struct alignas(2 * kPairs) Run {
        uint16_t x[kPairs];
      };
      const Run c = *reinterpret_cast<const Run*>(cos_at), s = *reinterpret_cast<const Run*>(sin_at);
      const bool half = args.table_dtype == DType::kFloat16;
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        cos[i] = half ? unpack<__half>(c.x[i]).x : unpack<__nv_bfloat16>(c.x[i]).x;
        sin[i] = half ? unpack<__half>(s.x[i]).x : unpack<__nv_bfloat16>(s.x[i]).x;
      }
    }
  }
};

template <bool kSplit, int kPairs>
__device__ __forceinline__ void rotate(float (&x)[2 * kPairs], const Angles<kPairs>& angles) {
  const auto rotate_pair = [](float& a, float& b, float c, float s) {
    const float first = a * c - b * s;
    b = b * c + a * s;
    a = first;
  };
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const int a = kSplit ? i : 2 * i, b = kSplit ? kPairs + i : 2 * i + 1;
    rotate_pair(x[a], x[b], angles.cos[i], angles.sin[i]);
  }
}

template <typename Piece>
__device__ __forceinline__ void rotate(Piece* piece, const Angles<Piece::kPairs>& angles) {
  float x[2 * Piece::kPairs];
  piece->to_floats(x);
  rotate<Piece::kSplit>(x, angles);
  piece->from_floats(x);
}

// One thread's work.
template <typename Piece, bool kRotates, bool kCaches>
__device__ __forceinline__ void move_piece(const RotaryArgs& args, const HeadRows& rows, const RotaryBlock& block) {
  using T = typename Piece::Element;
  const uint32_t block_of_rows = static_cast<uint32_t>(block.block - rows.first_block);
  const RotaryItem at = locate_item(rows, block_of_rows * kRotaryThreads + threadIdx.x);
  if (at.token >= block.num_tokens) return;
  const bool split = Piece::kPairs == 1 ? args.split : Piece::kSplit;
  const RotaryPiece part = piece_at(rows, split, Piece::kPairs, at.piece);
  const bool rotated = kRotates && part.rotated;
  const bool second = at.head + 1 < static_cast<uint32_t>(rows.num_heads);

  // All loads that need no other load come first.
  const int64_t seq = block.first_seq + at.token;
  const uint32_t first = static_cast<uint32_t>(part.first) * static_cast<uint32_t>(sizeof(T));
  const char* src = rows.src + block.batch * rows.src_stride_batch + seq * rows.src_stride_seq +
                    at.head * rows.src_stride_head + first;
  Piece pieces[kRotaryHeads];
  if (rotated || !rows.in_place || (kCaches && rows.cache != nullptr)) {
    pieces[0].load(src, part);
    if (second) pieces[1].load(src + rows.src_stride_head, part);
  }
  int64_t table_row = seq;
  bool known = true;  // the position is in the table
  if (kRotates && args.positions.data != nullptr) {
    table_row = index_at(args.positions, block.batch * args.positions_stride_batch + seq * args.positions_stride_seq);
    known = static_cast<uint64_t>(table_row) < static_cast<uint64_t>(args.max_position);
  }
  Angles<Piece::kPairs> angles;
  if (rotated && known) {
    angles.load(args, block.batch, table_row, static_cast<uint32_t>(at.piece));
  } else if (rotated) {
    angles.set_nan();
  }
  int64_t slot = -1;
  if (kCaches && rows.cache != nullptr) {
    slot =
        index_at(args.slot_mapping, block.batch * args.slot_mapping_stride_batch + seq * args.slot_mapping_stride_seq);
  }

  if (rotated) {
#pragma unroll
    for (Piece& piece : pieces) rotate(&piece, angles);
  } else if (!known) {
#pragma unroll
    for (Piece& piece : pieces) piece.set_nan();
  }
  if (rows.dst != nullptr && (rotated || !rows.in_place || !known)) {
    char* dst = const_cast<char*>(src);
    int64_t stride_head = rows.src_stride_head;
    if (!rows.in_place) {
      dst = rows.dst + block.batch * rows.dst_stride_batch + seq * rows.dst_stride_seq +
            at.head * rows.dst_stride_head + first;
      stride_head = rows.dst_stride_head;
    }
    pieces[0].store(dst, part);
    if (second) pieces[1].store(dst + stride_head, part);
  }
  if (kCaches && slot >= 0 && slot < args.num_slots) {
    const int64_t page = args.page_size.div(slot), row = slot - page * args.page_size.divisor;
    char* dst = rows.cache + page * rows.cache_stride_page + row * rows.cache_stride_seq +
                at.head * rows.cache_stride_head + first;
    pieces[0].store(dst, part);
    if (second) pieces[1].store(dst + rows.cache_stride_head, part);
  }
}

}  // namespace rotary_pieces

// kCaches: k and v go into a cache; else there is no v.
template <typename Piece, bool kCaches>
__global__ void __launch_bounds__(kRotaryThreads) rotary_any(const __grid_constant__ RotaryArgs args) {
  const RotaryBlock block = locate_block(args, blockIdx.x);
  if (block.block < args.rows[1].first_block) {
    rotary_pieces::move_piece<Piece, true, false>(args, args.rows[0], block);
  } else if (!kCaches || block.block < args.rows[2].first_block) {
    rotary_pieces::move_piece<Piece, true, kCaches>(args, args.rows[1], block);
  } else {
    rotary_pieces::move_piece<Piece, false, kCaches>(args, args.rows[2], block);
  }
}

}  // namespace dlattn::cuda
