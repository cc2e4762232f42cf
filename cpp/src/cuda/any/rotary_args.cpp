#include "cuda/any/rotary_args.h"

#include <algorithm>
#include <string>
#include <utility>

#include "cuda/rows_aligned.h"
#include "dlattn/error.h"
#include "element.h"

namespace dlattn::cuda {
namespace {

// A stride of an axis of size 1 may be any number.
int64_t to_bytes(int64_t elements, DType dtype) {
  return static_cast<int64_t>(static_cast<uint64_t>(elements) * static_cast<uint64_t>(size_of(dtype)));
}

struct Strides {
  int64_t batch, seq, head;
};

void set_source(HeadRows* r, const void* data, Strides strides, DType dtype) {
  r->src = static_cast<const char*>(data);
  r->src_stride_batch = to_bytes(strides.batch, dtype);
  r->src_stride_seq = to_bytes(strides.seq, dtype);
  r->src_stride_head = to_bytes(strides.head, dtype);
}

void set_output(HeadRows* r, void* data, Strides strides, DType dtype) {
  r->dst = static_cast<char*>(data);
  r->dst_stride_batch = to_bytes(strides.batch, dtype);
  r->dst_stride_seq = to_bytes(strides.seq, dtype);
  r->dst_stride_head = to_bytes(strides.head, dtype);
}

void set_cache(HeadRows* r, void* data, Strides strides, DType dtype) {  // batch: page
  r->cache = static_cast<char*>(data);
  r->cache_stride_page = to_bytes(strides.batch, dtype);
  r->cache_stride_seq = to_bytes(strides.seq, dtype);
  r->cache_stride_head = to_bytes(strides.head, dtype);
}

// More heads than an int32 counts are refused later, by what is kept here.
void set_shape(HeadRows* r, int64_t num_heads, int64_t dim, int64_t rotary_dim) {
  r->num_heads = static_cast<int32_t>(std::min<int64_t>(num_heads, INT32_MAX));
  r->dim = static_cast<int32_t>(dim);
  r->rotary_dim = static_cast<int32_t>(rotary_dim);
}

void set_rotated(RotaryArgs* args, const RotaryParams& p) {
  args->batch_size = p.batch_size, args->seqlen = p.seqlen;
  HeadRows &q = args->rows[0], &k = args->rows[1];
  set_shape(&q, p.num_heads, p.head_dim, p.rotary_dim);
  set_source(&q, p.q, {p.q_stride_batch, p.q_stride_seq, p.q_stride_head}, p.dtype);
  set_output(&q, p.q_out, {p.q_out_stride_batch, p.q_out_stride_seq, p.q_out_stride_head}, p.dtype);
  set_shape(&k, p.num_kv_heads, p.head_dim, p.rotary_dim);
  set_source(&k, p.k, {p.k_stride_batch, p.k_stride_seq, p.k_stride_head}, p.dtype);
  set_output(&k, p.k_out, {p.k_out_stride_batch, p.k_out_stride_seq, p.k_out_stride_head}, p.dtype);

  args->split = !p.interleaved;
  args->cos = static_cast<const char*>(p.cos), args->sin = static_cast<const char*>(p.sin);
  args->table_dtype = p.table_dtype;
  args->cos_stride_seq = to_bytes(p.cos_stride_seq, p.table_dtype);
  args->sin_stride_seq = to_bytes(p.sin_stride_seq, p.table_dtype);
  args->max_position = p.max_position;
  if (p.gathered) {
    args->cos_stride_batch = to_bytes(p.cos_stride_batch, p.table_dtype);
    args->sin_stride_batch = to_bytes(p.sin_stride_batch, p.table_dtype);
  } else if (p.rotary_dim > 0) {  // else no row is looked up
    args->positions = p.positions;
    args->positions_stride_batch = p.positions_stride_batch, args->positions_stride_seq = p.positions_stride_seq;
  }
}

void set_cached(RotaryArgs* args, const AppendKVParams& p) {
  HeadRows &k = args->rows[1], &v = args->rows[2];
  set_cache(&k, p.k_cache, {p.k_cache_stride_page, p.k_cache_stride_seq, p.k_cache_stride_head}, p.dtype);
  set_shape(&v, p.num_kv_heads, p.head_dim_v, 0);
  set_source(&v, p.v, {p.v_stride_batch, p.v_stride_seq, p.v_stride_head}, p.dtype);
  set_cache(&v, p.v_cache, {p.v_cache_stride_page, p.v_cache_stride_seq, p.v_cache_stride_head}, p.dtype);
  args->slot_mapping = p.slot_mapping;
  args->slot_mapping_stride_batch = p.slot_mapping_stride_batch;
  args->slot_mapping_stride_seq = p.slot_mapping_stride_seq;
  args->num_slots = p.num_pages * p.page_size;
  args->page_size = FastDiv(p.page_size);
}

// Strides are bytes here.
bool all_aligned(const HeadRows& r, const RotaryArgs& args, int64_t num_pages) {
  const int64_t batch = args.batch_size, seq = args.seqlen, head = r.num_heads, page = args.page_size.divisor;
  return rows_aligned(r.src, kPieceBytes, 1,
                      {{batch, r.src_stride_batch}, {seq, r.src_stride_seq}, {head, r.src_stride_head}}) &&
         rows_aligned(r.dst, kPieceBytes, 1,
                      {{batch, r.dst_stride_batch}, {seq, r.dst_stride_seq}, {head, r.dst_stride_head}}) &&
         rows_aligned(r.cache, kPieceBytes, 1,
                      {{num_pages, r.cache_stride_page}, {page, r.cache_stride_seq}, {head, r.cache_stride_head}});
}

// Why rows cannot be read and written in pieces of 16 bytes; null: they can.
const char* why_scalar(const RotaryArgs& args, DType dtype, int64_t num_pages, int64_t table_rows) {
  constexpr const char* kWhyDim[kRotaryRowSets] = {"q's head_dim or rotary_dim is not a multiple of 16 bytes",
                                                   "k's head_dim or rotary_dim is not a multiple of 16 bytes",
                                                   "v's head_dim is not a multiple of 16 bytes"};
  constexpr const char* kWhyRows[kRotaryRowSets] = {"rows of q or q_out are not 16-byte aligned",
                                                    "rows of k, k_out or k_cache are not 16-byte aligned",
                                                    "rows of v or v_cache are not 16-byte aligned"};
  bool rotates = false;
  for (int i = 0; i < kRotaryRowSets; ++i) {
    const HeadRows& r = args.rows[i];
    if (r.num_heads == 0) continue;
    rotates = rotates || r.rotary_dim > 0;
    const int64_t row = to_bytes(r.dim, dtype), rotary = to_bytes(r.rotary_dim, dtype);
    if (row % kPieceBytes != 0 || rotary % kPieceBytes != 0) return kWhyDim[i];
    if (!all_aligned(r, args, num_pages)) return kWhyRows[i];
  }
  if (!rotates) return nullptr;
  const int64_t bytes = kPieceBytes / 2 / size_of(dtype) * size_of(args.table_dtype);
  if (!rows_aligned(args.cos, bytes, 1,
                    {{args.batch_size, args.cos_stride_batch}, {table_rows, args.cos_stride_seq}}) ||
      !rows_aligned(args.sin, bytes, 1,
                    {{args.batch_size, args.sin_stride_batch}, {table_rows, args.sin_stride_seq}})) {
    return "rows of cos or sin are not aligned";
  }
  return nullptr;
}

void count_pieces(HeadRows* r, const RotaryArgs& args, int32_t piece_elements) {
  r->in_place = r->dst == r->src;
  r->rotated_pieces = r->rotary_dim / piece_elements;
  const int32_t copied = (r->dim - r->rotary_dim + piece_elements - 1) / piece_elements;
  // In place the rest of a row stays as it is, but for a position outside the table.
  const bool has_copies = !r->in_place || r->cache != nullptr || args.positions.data != nullptr;
  r->pieces = r->rotated_pieces + (has_copies ? copied : 0);
}

void count_items(HeadRows* r) {
  constexpr int64_t kMaxPieces = 128;  // of the longest row
  constexpr int64_t kMaxGroups = (INT64_C(1) << 31) / kRotaryChunkTokens / kMaxPieces - 1;
  const int64_t groups = (static_cast<int64_t>(r->num_heads) + kRotaryHeads - 1) / kRotaryHeads;
  if (groups > kMaxGroups) {
    throw Unsupported("num_heads is " + std::to_string(r->num_heads) + ", expected at most " +
                      std::to_string(kMaxGroups * kRotaryHeads) + " (= the CUDA kernel's limit)");
  }
  const bool wanted = r->dst != nullptr || r->cache != nullptr;
  r->items_per_token = wanted ? static_cast<int32_t>(groups) * r->pieces : 0;
  if (r->items_per_token == 0) return;
  r->by_items_per_token = NarrowDiv(r->items_per_token);
  r->by_pieces = NarrowDiv(r->pieces);
}

// One token a sequence: the batch is walked as one sequence, so that chunks are full.
void swap_batch_and_seq(RotaryArgs* args, bool gathered) {
  std::swap(args->batch_size, args->seqlen);
  for (HeadRows& r : args->rows) {
    std::swap(r.src_stride_batch, r.src_stride_seq);
    std::swap(r.dst_stride_batch, r.dst_stride_seq);
  }
  std::swap(args->positions_stride_batch, args->positions_stride_seq);
  std::swap(args->slot_mapping_stride_batch, args->slot_mapping_stride_seq);
  if (gathered) {
    std::swap(args->cos_stride_batch, args->cos_stride_seq);
    std::swap(args->sin_stride_batch, args->sin_stride_seq);
  } else if (args->positions.data == nullptr) {
    args->cos_stride_seq = args->sin_stride_seq = 0;  // every token is at position 0
  }
}

void finish(RotaryPlan* plan, int64_t num_pages, bool gathered) {
  RotaryArgs& args = plan->args;
  plan->why_scalar = why_scalar(args, plan->dtype, num_pages, gathered ? args.seqlen : args.max_position);
  const int64_t piece_elements = plan->why_scalar == nullptr ? kPieceBytes / size_of(plan->dtype) : 2;
  args.table_piece_bytes = static_cast<int32_t>(to_bytes(piece_elements / 2, args.table_dtype));
  if (args.batch_size == 0 || args.seqlen == 0) return;
  if (args.seqlen == 1) swap_batch_and_seq(&args, gathered);
  args.chunk_tokens = static_cast<int32_t>(std::min<int64_t>(args.seqlen, kRotaryChunkTokens));
  args.chunks_per_batch = FastDiv((args.seqlen - 1) / args.chunk_tokens + 1);
  args.num_chunks = args.batch_size * args.chunks_per_batch.divisor;
  for (HeadRows& rows : args.rows) {
    count_pieces(&rows, args, static_cast<int32_t>(piece_elements));
    count_items(&rows);
    rows.first_block = args.blocks_per_chunk;
    const int64_t items = static_cast<int64_t>(args.chunk_tokens) * rows.items_per_token;
    args.blocks_per_chunk += static_cast<int32_t>((items + kRotaryThreads - 1) / kRotaryThreads);
  }
  if (args.blocks_per_chunk > 0) args.by_blocks_per_chunk = NarrowDiv(args.blocks_per_chunk);
}

}  // namespace

RotaryPlan plan_rotary(const RotaryParams& p) {
  RotaryPlan plan;
  plan.dtype = p.dtype;
  set_rotated(&plan.args, p);
  finish(&plan, 0, p.gathered);
  return plan;
}

RotaryPlan plan_append_kv(const AppendKVParams& p) {
  RotaryPlan plan;
  plan.dtype = p.dtype, plan.caches = true;
  plan.args.batch_size = p.batch_size, plan.args.seqlen = p.seqlen;
  HeadRows* k = &plan.args.rows[1];
  set_shape(k, p.num_kv_heads, p.head_dim, 0);
  set_source(k, p.k, {p.k_stride_batch, p.k_stride_seq, p.k_stride_head}, p.dtype);
  set_cached(&plan.args, p);
  finish(&plan, p.num_pages, false);
  return plan;
}

RotaryPlan plan_rotary_append_kv(const RotaryAppendKVParams& params) {
  RotaryPlan plan;
  plan.dtype = params.rotary.dtype, plan.caches = true;
  set_rotated(&plan.args, params.rotary);
  set_cached(&plan.args, params.append);
  finish(&plan, params.append.num_pages, params.rotary.gathered);
  return plan;
}

}  // namespace dlattn::cuda
