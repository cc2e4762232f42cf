// What attention_decode_mma reads: the queries of an item; for each warp a ring of tiles of k and v. By cp.async.
//   slot s of a ring: tile of k at s kTileBytes, of v at (kSlots + s) kTileBytes; SwizzledRows
#pragma once

#include "cuda/attn/sequence.h"
#include "cuda/mma/config_decode_mma.h"
#include "cuda/mma/swizzled_rows.h"
#include "cuda/ptx/cp_async.cuh"

namespace dlattn::cuda {
namespace decode_mma {

// Which rows and keys an item is.
struct Item {
  int64_t kv_head, first_row;
  int num_rows;
  int64_t first_key;  // of the part; keys are counted from there
  int num_keys;       // of the part

  __device__ __forceinline__ int64_t query_of(const AttentionProblem& p, int row) const {
    return p.heads_per_kv_head_div.div(first_row + row);
  }
  __device__ __forceinline__ int64_t head_of(const AttentionProblem& p, int row, int64_t query) const {
    return kv_head * p.heads_per_kv_head + (first_row + row - query * p.heads_per_kv_head);
  }
  __device__ __forceinline__ int in_part(int64_t key) const {
    return static_cast<int>(min(max(key - first_key, int64_t{0}), static_cast<int64_t>(num_keys)));
  }
};

// The thread's share of q, zeros where there is none.
template <typename T, class Config>
__device__ __forceinline__ void copy_q(const AttentionProblem& p, const Sequence& sequence, const Item& item,
                                       uint32_t smem_q) {
  constexpr int kChunks = Config::kHeadDim / 8;
#pragma unroll
  for (int i = 0; i < Config::kRows * kChunks / Config::kThreads; ++i) {
    const int at = i * Config::kThreads + static_cast<int>(threadIdx.x);
    const int row = at / kChunks, column = at % kChunks * 8;
    const int64_t query = item.query_of(p, row), head = item.head_of(p, row, query);
    const T* q = static_cast<const T*>(p.q) + sequence.q_base + query * p.q_stride_seq + head * p.q_stride_head;
    const bool valid = row < item.num_rows && column < p.head_dim;
    ptx::cp_async_16(smem_q + SwizzledRows<Config::kHeadDim>::offset(row, column / 8),
                     valid ? static_cast<const void*>(q + column) : p.q, valid);
  }
}

// What a warp copies: lane_row + j kRowsPerCopy of a tile's keys, `column` .. `column` + 7 of each.
template <typename T, class Config>
struct Copies {
  static constexpr int kChunks = Config::kHeadDim / 8, kRowsPerCopy = 32 / kChunks;
  static constexpr int kCopies = Config::kTileKeys / kRowsPerCopy, kItem = sizeof(T);
  static constexpr int kStep = Config::kWarps * Config::kTileKeys;  // keys from a warp's tile to its next
  static_assert(Config::kTileKeys <= 32, "a lane looks up the page of one key");

  const AttentionProblem& p;
  const Sequence& sequence;
  const Item& item;
  const int lane, lane_row;
  const bool in_k, in_v;          // the column is one of the row's
  const uint32_t smem;            // of the lane in the ring
  int begin;                      // first key of the tile that is copied next
  const char *k, *v;              // dense: of the lane in that tile; paged: of key 0 of page 0
  const bool tile_in_page;        // paged: no tile crosses a page
  const bool near_pages;          // paged: all keys lie within 64 GiB behind k and v: 32 bits count 16 bytes
  const uint32_t k_step, v_step;  // bytes from one row that the lane copies to the next; 0: backwards or too far

  // Where key `lane` of a tile lies, or its first key if a tile never crosses a page; paged only. The entry of the table
  // as it comes, so that nothing waits for it before the copy does: its lower word, and the upper one of an int64. A used
  // page of 2^32 rows would fill the GPU.
  struct Page {
    int32_t lower, upper;
    uint32_t row;
  };
  Page page;                   // of the tile that is copied next
  int64_t k_offset, v_offset;  // what it tells, in bytes from k and v: found by copy_k, for copy_v as well

  __device__ __forceinline__ Copies(const AttentionProblem& problem, const Sequence& s, const Item& i, int warp,
                                    uint32_t ring)
      : p(problem),
        sequence(s),
        item(i),
        lane(static_cast<int>(threadIdx.x) & 31),
        lane_row(lane / kChunks),
        in_k(lane % kChunks * 8 < p.head_dim),
        in_v(lane % kChunks * 8 < p.head_dim_v),
        smem(ring + SwizzledRows<Config::kHeadDim>::offset(lane_row, lane % kChunks)),
        begin(warp * Config::kTileKeys),
        tile_in_page(p.page_size.divisor % Config::kTileKeys == 0 && item.first_key % Config::kTileKeys == 0),
        near_pages(is_near(p.k_stride_batch, p.k_stride_seq) && is_near(p.v_stride_batch, p.v_stride_seq)),
        k_step(step_of(p.k_stride_seq)),
        v_step(step_of(p.v_stride_seq)),
        page{},
        k_offset(0),
        v_offset(0) {
    const int64_t key = p.paged ? 0 : item.first_key + begin + lane_row;
    const int column = lane % kChunks * 8;
    k = reinterpret_cast<const char*>(static_cast<const T*>(p.k) + sequence.k_base + item.kv_head * p.k_stride_head +
                                      key * p.k_stride_seq + column);
    v = reinterpret_cast<const char*>(static_cast<const T*>(p.v) + sequence.v_base + item.kv_head * p.v_stride_head +
                                      key * p.v_stride_seq + column);
    if (in_k && in_v) return;
    // Columns past head_dim and head_dim_v, which only the last tile's copy touches.
#pragma unroll 1
    for (int row = 0; row < Config::kSlots * Config::kTileKeys; row += kRowsPerCopy) {
      if (!in_k) ptx::cp_async_16(place(smem, row), p.k, false);
      if (!in_v) ptx::cp_async_16(place(smem + Config::kSlots * Config::kTileBytes, row), p.k, false);
    }
  }

  __device__ __forceinline__ Page find_page(int tile) const {
    Page found = {};
    const int of_tile = tile_in_page ? 0 : lane;
    const int64_t key = item.first_key + tile + of_tile;
    if (of_tile < Config::kTileKeys && tile + of_tile < item.num_keys) {
      const int64_t index = p.page_size.div(key);
      const int64_t at = sequence.batch * p.page_table_stride_batch + index;
      const bool is_wide = p.page_table.dtype == DType::kInt64;
      const int32_t* entry = static_cast<const int32_t*>(p.page_table.data) + (is_wide ? 2 * at : at);
      found.lower = entry[0];
      if (is_wide) found.upper = entry[1];
      found.row = static_cast<uint32_t>(key - index * p.page_size.divisor);
    }
    return found;
  }

  __device__ __forceinline__ void find_offsets() {
    int64_t id = page.lower;
    if (p.page_table.dtype == DType::kInt64) {
      id = static_cast<int64_t>(static_cast<uint64_t>(page.upper) << 32 | static_cast<uint32_t>(page.lower));
    }
    id = min(max(id, int64_t{0}), p.num_pages - 1);  // a wrong id leads to no wild access
    k_offset = kItem * (id * p.k_stride_batch + static_cast<int64_t>(page.row) * p.k_stride_seq);
    v_offset = kItem * (id * p.v_stride_batch + static_cast<int64_t>(page.row) * p.v_stride_seq);
  }

  // One tile of k or v, keys past the part as zeros. The last tile apart: the others need no counts. Columns that are not the
  // row's are zeros already (two copies to one place would race).
  __device__ __forceinline__ void copy(uint32_t slot, const char* at, int64_t offset, bool in_row, uint32_t step,
                                       int64_t stride_seq) const {
    const bool whole = begin + Config::kTileKeys <= item.num_keys;
    const int rows = item.num_keys - begin - lane_row;
    if (p.paged && !tile_in_page) {
      if (whole && near_pages) {
        copy_scattered(slot, at, offset, in_row);
      } else {
        copy_scattered_rows(slot, at, offset, in_row, rows);
      }
      return;
    }
    if (p.paged) at += offset + kItem * lane_row * stride_seq;
    if (whole && step != 0) {
#pragma unroll
      for (int j = 0; j < kCopies; ++j) {
        ptx::cp_async_16_if(in_row, place(slot, j * kRowsPerCopy), at + static_cast<uint64_t>(step) * j);
      }
    } else if (in_row) {
#pragma unroll 1
      for (int j = 0; j < kCopies; ++j) {
        const bool valid = j * kRowsPerCopy < rows;
        ptx::cp_async_16(place(slot, j * kRowsPerCopy),
                         valid ? static_cast<const void*>(at + j * kRowsPerCopy * stride_seq * kItem) : p.k, valid);
      }
    }
  }

  // Each key somewhere else: lane i knows how far behind `at` key i is. All lanes of the warp take part.
  __device__ __forceinline__ void copy_scattered(uint32_t slot, const char* at, int64_t offset, bool in_row) const {
    const auto units = static_cast<uint32_t>(offset >> 4);
#pragma unroll
    for (int j = 0; j < kCopies; ++j) {
      const uint32_t of_key = __shfl_sync(0xffffffffu, units, j * kRowsPerCopy + lane_row);
      ptx::cp_async_16_if(in_row, place(slot, j * kRowsPerCopy), at + (static_cast<uint64_t>(of_key) << 4));
    }
  }
  // The same unless near_pages, and for a tile whose last rows do not exist.
  __device__ __forceinline__ void copy_scattered_rows(uint32_t slot, const char* at, int64_t offset, bool in_row,
                                                      int rows) const {
#pragma unroll 1
    for (int j = 0; j < kCopies; ++j) {
      const int64_t of_key = __shfl_sync(0xffffffffu, static_cast<long long>(offset), j * kRowsPerCopy + lane_row);
      const bool valid = j * kRowsPerCopy < rows;
      if (in_row) {
        ptx::cp_async_16(place(slot, j * kRowsPerCopy), valid ? static_cast<const void*>(at + of_key) : p.k, valid);
      }
    }
  }

  // k of a tile, then its v, then advance(). Each copy closes a group, also if there is no tile any more, so that groups
  // can be counted.
  __device__ __forceinline__ void copy_k(int slot) {
    if (begin < item.num_keys) {
      if (p.paged) find_offsets();
      copy(smem + slot * Config::kTileBytes, k, k_offset, in_k, k_step, p.k_stride_seq);
    }
    ptx::cp_async_commit();
  }
  __device__ __forceinline__ void copy_v(int slot) const {
    if (begin < item.num_keys) {
      copy(smem + (Config::kSlots + slot) * Config::kTileBytes, v, v_offset, in_v, v_step, p.v_stride_seq);
    }
    ptx::cp_async_commit();
  }
  __device__ __forceinline__ void advance(const Page& next) {
    begin += kStep;
    page = next;
    if (p.paged) return;
    constexpr int kCopiesOfStep = kStep / kRowsPerCopy;
    k += k_step != 0 ? static_cast<int64_t>(k_step) * kCopiesOfStep : kStep * kItem * p.k_stride_seq;
    v += v_step != 0 ? static_cast<int64_t>(v_step) * kCopiesOfStep : kStep * kItem * p.v_stride_seq;
  }

 private:
  // The lane's chunk `row` rows, a multiple of kRowsPerCopy, behind its first one: the swizzles of the two numbers add.
  static __device__ __forceinline__ uint32_t place(uint32_t first, int row) {
    return (first ^ static_cast<uint32_t>(row % 8 * 16)) + static_cast<uint32_t>(row * Config::kRowBytes);
  }
  // Whether the last row of the last page lies within 64 GiB behind the first one; no, if a stride is negative.
  __device__ __forceinline__ bool is_near(int64_t stride_batch, int64_t stride_seq) const {
    const int64_t last = kItem * ((p.num_pages - 1) * stride_batch + (p.page_size.divisor - 1) * stride_seq);
    return stride_batch >= 0 && stride_seq >= 0 && last >> 36 == 0;
  }
  static __device__ __forceinline__ uint32_t step_of(int64_t stride) {
    const int64_t step = kRowsPerCopy * kItem * stride;
    return stride > 0 && stride < (int64_t{1} << 24) ? static_cast<uint32_t>(step) : 0;
  }
};

}  // namespace decode_mma
}  // namespace dlattn::cuda
