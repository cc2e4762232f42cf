// Copies of q, and of k and v tile by tile, into the shared memory of attention_prefill_mma.
#pragma once

#include "cuda/mma/config_prefill_mma.h"
#include "cuda/mma/work_item.cuh"
#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/ldmatrix.cuh"

namespace dlattn::cuda {
namespace prefill_mma {

// How the threads copy rows: kLanes of them share one, each moves kChunkSteps pieces of 16 bytes of it.
template <class Config>
struct CopyLayout {
  static constexpr int kChunks = Config::kHeadDim / 8;
  static constexpr int kLanes = kChunks % 16 == 0 ? 16 : kChunks % 8 == 0 ? 8 : 4;
  static constexpr int kChunkSteps = kChunks / kLanes, kRowStep = Config::kThreads / kLanes;
  static constexpr int kPieces = Config::kTileKV / kRowStep * kChunkSteps;  // of a tile of k or v, for a thread
  static constexpr int kItem = 2, kPitchBytes = Config::kPitch * kItem;
  static_assert(kChunks % kLanes == 0 && Config::kThreads % kLanes == 0, "whole steps");
  static_assert(Config::kTileQ % kRowStep == 0 && Config::kTileKV % kRowStep == 0, "whole steps");
};

// Where the keys lie: what all threads share.
template <typename T, class Config>
struct KeyStorage {
  static constexpr int kTables = 2;  // of the tile that is copied and the one that is looked up
  T k[Config::kStages][Config::kTileKV][Config::kPitch];
  T v[Config::kStages][Config::kTileKV][Config::kPitch];
  const T *k_part, *v_part;  // dense: key 0 of the part; paged: of page 0
  uint32_t k_step, v_step;   // bytes from one row that a thread copies to the next; 0: backwards, too far or paged
  int64_t page[Config::kTileKV];  // ids
  int64_t k_row[kTables][Config::kTileKV], v_row[kTables][Config::kTileKV];  // paged: of each key, in elements
};

// A whole tile of dense keys, which a thread copies piece by piece, between products.
template <class Config>
struct Pieces {
  using Layout = CopyLayout<Config>;
  const char* from;
  uint32_t to;
  uint32_t step;
  int32_t columns;  // from this thread's first on, elements; not positive: nothing to copy

  // Those that belong to step `index` of `count`.
  __device__ __forceinline__ void copy(int index, int count) const {
#pragma unroll
    for (int i = index * Layout::kPieces / count; i < (index + 1) * Layout::kPieces / count; ++i) {
      const int row = i / Layout::kChunkSteps, column = i % Layout::kChunkSteps * 8 * Layout::kLanes;
      ptx::cp_async_16_if(column < columns,
                          to + row * Layout::kRowStep * Layout::kPitchBytes + column * Layout::kItem,
                          from + static_cast<uint64_t>(step) * row + column * Layout::kItem);
    }
  }
};

template <typename T, class Config>
struct KeyTiles {
  using Layout = CopyLayout<Config>;
  using Storage = KeyStorage<T, Config>;
  static constexpr int kTileKV = Config::kTileKV;
  static_assert(kTileKV <= Config::kThreads, "a thread looks up the page of a key");

  const AttentionProblem& p;
  Storage& smem;
  const WorkItem& item;  // in shared memory
  const int num_keys;    // of the part
  const int row, column;  // that this thread copies first
  const char *k_at, *v_at;  // dense: this thread's first piece of the tile that is copied next

  // Thread 0 writes what all share.
  __device__ __forceinline__ KeyTiles(const AttentionProblem& problem, Storage& storage, const WorkItem& w)
      : p(problem),
        smem(storage),
        item(w),
        num_keys(static_cast<int>(w.keys.end - w.keys.begin)),
        row(static_cast<int>(threadIdx.x) / Layout::kLanes),
        column(static_cast<int>(threadIdx.x) % Layout::kLanes * 8) {
    const int64_t first = p.paged ? 0 : w.keys.begin;
    const T* k = static_cast<const T*>(p.k) + w.sequence.k_base + w.kv_head * p.k_stride_head + first * p.k_stride_seq;
    const T* v = static_cast<const T*>(p.v) + w.sequence.v_base + w.kv_head * p.v_stride_head + first * p.v_stride_seq;
    constexpr int64_t kFar = (int64_t{1} << 31) / (Layout::kItem * kTileKV);  // a tile's offsets fit 32 bits
    const bool near = !p.paged && p.k_stride_seq >= 0 && p.k_stride_seq < kFar && p.v_stride_seq >= 0 && p.v_stride_seq < kFar;
    if (threadIdx.x == 0) {
      smem.k_part = k;
      smem.v_part = v;
      smem.k_step = near ? static_cast<uint32_t>(p.k_stride_seq) * Layout::kRowStep * Layout::kItem : 0;
      smem.v_step = near ? static_cast<uint32_t>(p.v_stride_seq) * Layout::kRowStep * Layout::kItem : 0;
    }
    k_at = reinterpret_cast<const char*>(k + row * p.k_stride_seq + column);
    v_at = reinterpret_cast<const char*>(v + row * p.v_stride_seq + column);
  }

  // Columns past head_dim and head_dim_v, which no copy touches.
  __device__ __forceinline__ void clear_padding(T* rows, int count, int dim) const {
    const int chunks = Layout::kChunks - dim / 8;
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < count * chunks; i += Config::kThreads) {
      *reinterpret_cast<uint4*>(rows + i / chunks * Config::kPitch + dim + i % chunks * 8) = make_uint4(0, 0, 0, 0);
    }
  }
  __device__ __forceinline__ void clear_padding() const {
    clear_padding(&smem.k[0][0][0], Config::kStages * kTileKV, p.head_dim);
    clear_padding(&smem.v[0][0][0], Config::kStages * kTileKV, p.head_dim_v);
  }

  // What one call of `copy_*` leaves to the caller: to copy these pieces. All else, it has copied itself.
  __device__ __forceinline__ Pieces<Config> next_k(int tile) const {
    return begin_copy(tile, smem.k_step, k_at, &smem.k[tile % Config::kStages][0][0], smem.k_part, p.head_dim, p.k_stride_seq,
                      smem.k_row[tile % Storage::kTables]);
  }
  __device__ __forceinline__ Pieces<Config> next_v(int tile) const {
    return begin_copy(tile, smem.v_step, v_at, &smem.v[tile % Config::kStages][0][0], smem.v_part, p.head_dim_v, p.v_stride_seq,
                      smem.v_row[tile % Storage::kTables]);
  }
  // To the tile behind, after the pieces.
  __device__ __forceinline__ void advance() {
    k_at += static_cast<uint64_t>(smem.k_step) * (kTileKV / Layout::kRowStep);
    v_at += static_cast<uint64_t>(smem.v_step) * (kTileKV / Layout::kRowStep);
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
    return p.paged && threadIdx.x < kTileKV && tile * kTileKV + static_cast<int>(threadIdx.x) < num_keys;
  }
  __device__ __forceinline__ int64_t key_of(int tile) const {
    return item.keys.begin + tile * kTileKV + static_cast<int>(threadIdx.x);
  }

  __device__ __forceinline__ Pieces<Config> begin_copy(int tile, uint32_t step, const char* at, T* to, const T* part, int dim,
                                                       int64_t stride, const int64_t* rows) const {
    const int begin = tile * kTileKV;
    const bool whole = step != 0 && begin + kTileKV <= num_keys;
    const uint32_t place = ptx::smem_address(to) + row * Layout::kPitchBytes + column * Layout::kItem;
    if (!whole && begin < num_keys) {  // the keys that there are, zeros for the others
#pragma unroll 1
      for (int r = 0; r < kTileKV; r += Layout::kRowStep) {
        const bool valid = begin + row + r < num_keys;
        const T* from = part + column + (!valid ? 0 : p.paged ? rows[row + r] : (begin + row + r) * stride);
#pragma unroll
        for (int c = 0; c < Layout::kChunkSteps; ++c) {
          const int at_column = 8 * c * Layout::kLanes;
          if (column + at_column >= dim) break;
          ptx::cp_async_16(place + r * Layout::kPitchBytes + at_column * Layout::kItem, from + at_column, valid);
        }
      }
    }
    return {at, place, step, whole ? dim - column : 0};
  }
};

}  // namespace prefill_mma
}  // namespace dlattn::cuda
