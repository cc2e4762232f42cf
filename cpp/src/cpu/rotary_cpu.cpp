// Rotary embedding and cache writes on the CPU, a token at a time.
#include <cstring>

#include "backend.h"
#include "cpu/isa.h"
#include "cpu/thread_pool.h"
#include "element.h"

namespace dlattn::cpu {
namespace {

constexpr int64_t kBlockBytes = 1 << 15;  // of one task: some microseconds
constexpr int64_t kWorthBytes = 1 << 17;

// body(batch, seq) for every token; tokens are dealt out in blocks of about kBlockBytes.
template <class F>
void for_each_token(int64_t batch_size, int64_t seqlen, int64_t bytes_per_token, const F& body) {
  const int64_t tokens = batch_size * seqlen;
  const int64_t block = bytes_per_token >= kBlockBytes ? 1 : kBlockBytes / (bytes_per_token + 1) + 1;
  parallel_for((tokens + block - 1) / block, tokens * bytes_per_token > kWorthBytes, [&](int64_t task) {
    const int64_t end = (task + 1) * block < tokens ? (task + 1) * block : tokens;
    for (int64_t t = task * block; t < end; ++t) body(t / seqlen, t % seqlen);
  });
}

// One token's row of the tables, as float32.
struct Angles {
  float cos[128], sin[128];

  Angles(const RotaryParams& p, int64_t batch, int64_t seq) {
    int64_t row = seq;
    if (p.positions.data != nullptr) {
      row = index_at(p.positions, batch * p.positions_stride_batch + seq * p.positions_stride_seq);
    }
    const int64_t first = p.gathered ? batch : 0;
    const auto load = kernels_for(p.table_dtype).load;
    load(offset(p.cos, first * p.cos_stride_batch + row * p.cos_stride_seq, p.table_dtype), cos, p.rotary_dim / 2);
    load(offset(p.sin, first * p.sin_stride_batch + row * p.sin_stride_seq, p.table_dtype), sin, p.rotary_dim / 2);
  }
};

RotaryRows rows_of(const RotaryParams& p, const Angles& angles) {
  RotaryRows rows;
  rows.head_dim = static_cast<int>(p.head_dim);
  rows.rotary_dim = static_cast<int>(p.rotary_dim);
  rows.interleaved = p.interleaved;
  rows.cos = angles.cos;
  rows.sin = angles.sin;
  return rows;
}

void rotate_q(const RotaryParams& p, int64_t batch, int64_t seq, RotaryRows rows) {
  rows.num_heads = p.num_heads;
  rows.src = offset(p.q, batch * p.q_stride_batch + seq * p.q_stride_seq, p.dtype);
  rows.dst = offset(p.q_out, batch * p.q_out_stride_batch + seq * p.q_out_stride_seq, p.dtype);
  rows.src_stride_head = p.q_stride_head;
  rows.dst_stride_head = p.q_out_stride_head;
  kernels_for(p.dtype).rotate(rows);
}

void rotate_k(const RotaryParams& p, int64_t batch, int64_t seq, RotaryRows rows, void* dst, int64_t dst_stride_head) {
  rows.num_heads = p.num_kv_heads;
  rows.src = offset(p.k, batch * p.k_stride_batch + seq * p.k_stride_seq, p.dtype);
  rows.dst = dst;
  rows.src_stride_head = p.k_stride_head;
  rows.dst_stride_head = dst_stride_head;
  kernels_for(p.dtype).rotate(rows);
}

int64_t slot_of(const AppendKVParams& p, int64_t batch, int64_t seq) {
  return index_at(p.slot_mapping, batch * p.slot_mapping_stride_batch + seq * p.slot_mapping_stride_seq);
}

void copy_rows(const void* src, int64_t src_stride, void* dst, int64_t dst_stride, int64_t heads, int64_t dim,
               DType dtype) {
  for (int64_t h = 0; h < heads; ++h) {
    std::memcpy(offset(dst, h * dst_stride, dtype), offset(src, h * src_stride, dtype),
                static_cast<size_t>(dim * size_of(dtype)));
  }
}

char* k_slot(const AppendKVParams& p, int64_t slot) {
  return offset(p.k_cache, slot / p.page_size * p.k_cache_stride_page + slot % p.page_size * p.k_cache_stride_seq,
                p.dtype);
}

char* v_slot(const AppendKVParams& p, int64_t slot) {
  return offset(p.v_cache, slot / p.page_size * p.v_cache_stride_page + slot % p.page_size * p.v_cache_stride_seq,
                p.dtype);
}

void append_v(const AppendKVParams& p, int64_t batch, int64_t seq, int64_t slot) {
  copy_rows(offset(p.v, batch * p.v_stride_batch + seq * p.v_stride_seq, p.dtype), p.v_stride_head, v_slot(p, slot),
            p.v_cache_stride_head, p.num_kv_heads, p.head_dim_v, p.dtype);
}

}  // namespace

void rotary(const RotaryParams& p) {
  const int64_t bytes = (p.num_heads + p.num_kv_heads) * p.head_dim * size_of(p.dtype);
  for_each_token(p.batch_size, p.seqlen, bytes, [&](int64_t batch, int64_t seq) {
    const Angles angles(p, batch, seq);
    const RotaryRows rows = rows_of(p, angles);
    if (p.num_heads > 0) rotate_q(p, batch, seq, rows);
    if (p.num_kv_heads > 0) {
      void* dst = offset(p.k_out, batch * p.k_out_stride_batch + seq * p.k_out_stride_seq, p.dtype);
      rotate_k(p, batch, seq, rows, dst, p.k_out_stride_head);
    }
  });
}

void append_kv(const AppendKVParams& p) {
  const int64_t bytes = p.num_kv_heads * (p.head_dim + p.head_dim_v) * size_of(p.dtype);
  for_each_token(p.batch_size, p.seqlen, bytes, [&](int64_t batch, int64_t seq) {
    const int64_t slot = slot_of(p, batch, seq);
    if (slot < 0) return;
    copy_rows(offset(p.k, batch * p.k_stride_batch + seq * p.k_stride_seq, p.dtype), p.k_stride_head, k_slot(p, slot),
              p.k_cache_stride_head, p.num_kv_heads, p.head_dim, p.dtype);
    append_v(p, batch, seq, slot);
  });
}

void rotary_append_kv(const RotaryAppendKVParams& params) {
  const RotaryParams& p = params.rotary;
  const AppendKVParams& cache = params.append;
  const int64_t bytes = (p.num_heads + 2 * p.num_kv_heads) * p.head_dim * size_of(p.dtype);
  for_each_token(p.batch_size, p.seqlen, bytes, [&](int64_t batch, int64_t seq) {
    const Angles angles(p, batch, seq);
    const RotaryRows rows = rows_of(p, angles);
    if (p.num_heads > 0) rotate_q(p, batch, seq, rows);
    const int64_t slot = slot_of(cache, batch, seq);
    if (slot >= 0) {
      rotate_k(p, batch, seq, rows, k_slot(cache, slot), cache.k_cache_stride_head);
      append_v(cache, batch, seq, slot);
    }
    if (p.k_out != nullptr) {  // after the cache: k_out may be k
      void* dst = offset(p.k_out, batch * p.k_out_stride_batch + seq * p.k_out_stride_seq, p.dtype);
      rotate_k(p, batch, seq, rows, dst, p.k_out_stride_head);
    }
  });
}

}  // namespace dlattn::cpu
