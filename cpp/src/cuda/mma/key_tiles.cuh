// Copies of q, and of k and v tile by tile, into the shared memory of attention_prefill_mma.
#pragma once

#include "cuda/mma/config_prefill_mma.h"
#include "cuda/mma/swizzled_rows.h"
#include "cuda/mma/work_item.cuh"
#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/special.cuh"

namespace dlattn::cuda {
namespace prefill_mma {

// How the threads copy rows: kLanes of them share one, each moves kChunkSteps pieces of 16 bytes of it.
template <class Config>
struct CopyLayout {
  static constexpr int kChunks = Config::kHeadDim / 8;
  static constexpr int kLanes = kChunks % 16 == 0 ? 16 : kChunks % 8 == 0 ? 8 : 4;
  static constexpr int kChunkSteps = kChunks / kLanes, kRowStep = Config::kThreads / kLanes;
  static constexpr int kPieces = Config::kTileKV / kRowStep * kChunkSteps;  // of a tile of k or v, for a thread
  static constexpr int kItem = 2, kRowBytes = Config::kHeadDim * kItem;
  static_assert(kChunks % kLanes == 0 && Config::kThreads % kLanes == 0, "whole steps");
  static_assert(kRowStep % 8 == 0 && kLanes % 4 == 0, "the same place in each row that a thread copies");
  static_assert(Config::kTileQ % kRowStep == 0 && Config::kTileKV % kRowStep == 0, "whole steps");
};

// Where the keys lie: what all threads share.
template <typename T, class Config>
struct KeyStorage {
  static constexpr int kTables = 2;  // of the tile that is copied and the one that is looked up
  alignas(128) T k[Config::kStages][Config::kTileKV][Config::kHeadDim];  // SwizzledRows
  alignas(128) T v[Config::kStages][Config::kTileKV][Config::kHeadDim];
  const T *k_part, *v_part;       // dense: key 0 of the part; paged: of page 0
  uint32_t k_stride, v_stride;    // dense: bytes from one row to the next; 0: backwards, too far, or paged
  int32_t num_keys;               // of the part
  int64_t page[Config::kTileKV];  // ids
  int64_t k_row[kTables][Config::kTileKV], v_row[kTables][Config::kTileKV];  // paged: of each key, in elements
};

// A thread's share of a whole tile of dense keys, which it copies piece by piece, but for the first tile between products.
template <class Config>
struct Pieces {
  using Layout = CopyLayout<Config>;
  static constexpr uint32_t kToV = sizeof(uint16_t) * Config::kStages * Config::kTileKV * Config::kHeadDim;
  const char *k, *v;
  uint32_t k_stride, v_stride;   // bytes
  uint32_t to;                   // of k; v is kToV behind it
  int32_t k_columns, v_columns;  // from this thread's first on, elements; not positive: nothing to copy

  // Those that belong to step `index` of `count`.
  __device__ __forceinline__ void copy(int index, int count) const {
#pragma unroll
    for (int i = index * Layout::kPieces / count; i < (index + 1) * Layout::kPieces / count; ++i) {
      const int row = i / Layout::kChunkSteps * Layout::kRowStep;
      const int column = i % Layout::kChunkSteps * 8 * Layout::kLanes;
      const uint32_t at = to + row * Layout::kRowBytes + column * Layout::kItem;
      ptx::cp_async_16_if(column < k_columns, at, k + static_cast<uint64_t>(k_stride) * row + column * Layout::kItem);
      ptx::cp_async_16_if(column < v_columns, at + kToV,
                          v + static_cast<uint64_t>(v_stride) * row + column * Layout::kItem);
    }
  }
};

template <typename T, class Config>
struct KeyTiles {
  using Layout = CopyLayout<Config>;
  using Storage = KeyStorage<T, Config>;
  using Rows = SwizzledRows<Config::kHeadDim>;
  static constexpr int kTileKV = Config::kTileKV;
  static_assert(kTileKV <= Config::kThreads, "a thread looks up the page of a key");

  const AttentionProblem& p;
  Storage& smem;
  const WorkItem& item;  // in shared memory, from the barrier after begin() on

  __device__ __forceinline__ KeyTiles(const AttentionProblem& problem, Storage& storage, const WorkItem& w)
      : p(problem), smem(storage), item(w) {}

  // The same item, from registers: thread 0 writes what all share; all copy the first tile, unless it must be copied by
  // copy_at_once(0).
  __device__ __forceinline__ void begin(const WorkItem& w) const {
    const int64_t first_key = p.paged ? 0 : w.keys.begin;
    const T* k =
        static_cast<const T*>(p.k) + w.sequence.k_base + w.kv_head * p.k_stride_head + first_key * p.k_stride_seq;
    const T* v =
        static_cast<const T*>(p.v) + w.sequence.v_base + w.kv_head * p.v_stride_head + first_key * p.v_stride_seq;
    constexpr int64_t kFar = int64_t{1} << 24;  // elements
    const bool near =
        !p.paged && p.k_stride_seq > 0 && p.k_stride_seq < kFar && p.v_stride_seq > 0 && p.v_stride_seq < kFar;
    const uint32_t k_stride = near ? static_cast<uint32_t>(p.k_stride_seq) * Layout::kItem : 0;
    const uint32_t v_stride = near ? static_cast<uint32_t>(p.v_stride_seq) * Layout::kItem : 0;
    const auto num_keys = static_cast<int>(w.keys.end - w.keys.begin);
    pieces_of(0, k, v, k_stride, v_stride, num_keys).copy(0, 1);
    if (threadIdx.x == 0) {
      smem.num_keys = num_keys;
      smem.k_part = k;
      smem.v_part = v;
      smem.k_stride = k_stride;
      smem.v_stride = v_stride;
    }
  }

  // That this thread copies. Found again each time: kept in registers, it would be too much.
  struct Place {
    int row, column;
  };
  static __device__ __forceinline__ Place first_piece() {
    const int thread = ptx::thread_id();
    return {thread / Layout::kLanes, thread % Layout::kLanes * 8};
  }

  // Columns past head_dim and head_dim_v, which no copy touches.
  __device__ __forceinline__ void clear_padding(T* rows, int count, int dim) const {
    const int chunks = Layout::kChunks - dim / 8;
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < count * chunks; i += Config::kThreads) {
      const int offset = Rows::offset(i / chunks, dim / 8 + i % chunks);
      *reinterpret_cast<uint4*>(reinterpret_cast<char*>(rows) + offset) = make_uint4(0, 0, 0, 0);
    }
  }
  __device__ __forceinline__ void clear_padding() const {
    clear_padding(&smem.k[0][0][0], Config::kStages * kTileKV, p.head_dim);
    clear_padding(&smem.v[0][0][0], Config::kStages * kTileKV, p.head_dim_v);
  }

  // A tile's pieces; none if it must be copied at once.
  __device__ __forceinline__ Pieces<Config> pieces_of(int tile) const {
    return pieces_of(tile, smem.k_part, smem.v_part, smem.k_stride, smem.v_stride, smem.num_keys);
  }
  __device__ __forceinline__ Pieces<Config> pieces_of(int tile, const T* k, const T* v, uint32_t k_stride,
                                                      uint32_t v_stride, int num_keys) const {
    const int begin = tile * kTileKV;
    const auto [row, column] = first_piece();
    const bool whole = k_stride != 0 && begin + kTileKV <= num_keys;
    return {reinterpret_cast<const char*>(k + column) + static_cast<uint64_t>(k_stride) * (begin + row),
            reinterpret_cast<const char*>(v + column) + static_cast<uint64_t>(v_stride) * (begin + row),
            k_stride,
            v_stride,
            ptx::smem_address(smem.k[tile % Config::kStages]) + Rows::offset(row, column / 8),
            whole ? p.head_dim - column : 0,
            whole ? p.head_dim_v - column : 0};
  }
  // The keys that there are, zeros for the others; nothing if pieces_of() gives pieces.
  __device__ __forceinline__ void copy_at_once(int tile) const {
    const int begin = tile * kTileKV;
    if (begin >= smem.num_keys || (smem.k_stride != 0 && begin + kTileKV <= smem.num_keys)) return;
    const int stage = tile % Config::kStages, table = tile % Storage::kTables;
    copy_rows(begin, smem.k[stage], smem.k_part, p.head_dim, p.k_stride_seq, smem.k_row[table]);
    copy_rows(begin, smem.v[stage], smem.v_part, p.head_dim_v, p.v_stride_seq, smem.v_row[table]);
  }

  // Paged: a thread looks up a key of each tile. Its page's id comes by cp.async, of a later tile than its place is written of.
  __device__ __forceinline__ void request_page(int tile) const {
    if (!looks_up(tile)) return;
    const int64_t index = item.sequence.batch * p.page_table_stride_batch + p.page_size.div(key_of(tile));
    const uint32_t to = ptx::smem_address(&smem.page[threadIdx.x]);
    if (p.page_table.dtype == DType::kInt32) {
      ptx::cp_async_4(to, static_cast<const int32_t*>(p.page_table.data) + index);
    } else {
      ptx::cp_async_8(to, static_cast<const int64_t*>(p.page_table.data) + index);
    }
  }
  // After the requested id has come.
  __device__ __forceinline__ void put_place(int tile) const {
    if (!looks_up(tile)) return;
    const int64_t key = key_of(tile), row = key - p.page_size.div(key) * p.page_size.divisor;
    const int64_t read = p.page_table.dtype == DType::kInt32
                             ? *reinterpret_cast<const int32_t*>(&smem.page[threadIdx.x])
                             : smem.page[threadIdx.x];
    const int64_t page = min(max(read, int64_t{0}), p.num_pages - 1);
    smem.k_row[tile % Storage::kTables][threadIdx.x] = page * p.k_stride_batch + row * p.k_stride_seq;
    smem.v_row[tile % Storage::kTables][threadIdx.x] = page * p.v_stride_batch + row * p.v_stride_seq;
  }

 private:
  __device__ __forceinline__ bool looks_up(int tile) const {
    return p.paged && threadIdx.x < kTileKV && tile * kTileKV + static_cast<int>(threadIdx.x) < smem.num_keys;
  }
  __device__ __forceinline__ int64_t key_of(int tile) const {
    return item.keys.begin + tile * kTileKV + static_cast<int>(threadIdx.x);
  }

  __device__ __forceinline__ void copy_rows(int begin, const T (*to)[Config::kHeadDim], const T* part, int dim,
                                            int64_t stride, const int64_t* rows) const {
    const auto [row, column] = first_piece();
    const uint32_t place = ptx::smem_address(to) + Rows::offset(row, column / 8);
#pragma unroll 1
    for (int r = 0; r < kTileKV; r += Layout::kRowStep) {
      const bool valid = begin + row + r < smem.num_keys;
      const T* from = part + column + (!valid ? 0 : p.paged ? rows[row + r] : (begin + row + r) * stride);
#pragma unroll
      for (int c = 0; c < Layout::kChunkSteps; ++c) {
        const int at = 8 * c * Layout::kLanes;
        if (column + at >= dim) break;
        ptx::cp_async_16(place + r * Layout::kRowBytes + at * Layout::kItem, from + at, valid);
      }
    }
  }
};

}  // namespace prefill_mma
}  // namespace dlattn::cuda
