// What the kernel rotary_any is given: rows to rotate or copy, made from the parameters of rotary_embedding, append_kv
// and rotary_append_kv. Host code, but for the functions that find a thread's work.
#pragma once

#include <cstdint>

#include "cuda/any/narrow_div.h"
#include "cuda/attn/fast_div.h"
#include "dlattn/params.h"

namespace dlattn::cuda {

constexpr int kRotaryThreads = 128;  // of a block. H200, bf16, 32 + 8 heads x 128: 256 cost 0.1 to 0.2 us at 1 token
constexpr int kRotaryHeads = 2;  // rows of a thread: heads 2i and 2i + 1 share its angles. H200, same: 4 cost 0.4 us
constexpr int kRotaryChunkTokens = 16;  // q, k and v of so many tokens are neighbours in the grid; untuned
constexpr int kRotaryRowSets = 3;       // q, k, v

// The rows of all heads of q, k or v: where they come from and the two places they may go to. Strides are bytes here.
struct HeadRows {
  const char* src = nullptr;
  char* dst = nullptr;    // null: not wanted
  char* cache = nullptr;  // null: not wanted
  int64_t src_stride_batch = 0, src_stride_seq = 0, src_stride_head = 0;
  int64_t dst_stride_batch = 0, dst_stride_seq = 0, dst_stride_head = 0;
  int64_t cache_stride_page = 0, cache_stride_seq = 0, cache_stride_head = 0;
  int32_t num_heads = 0;
  int32_t dim = 0;             // elements of a row
  int32_t rotary_dim = 0;      // of them rotated; 0: the row is copied
  int32_t rotated_pieces = 0;  // pieces of a row that are rotated, which come first
  int32_t pieces = 0;          // all that have work
  bool in_place = false;       // dst is src

  int32_t items_per_token = 0;  // threads
  int32_t first_block = 0;      // of a chunk
  NarrowDiv by_items_per_token, by_pieces;
};

// An item is one thread's work: one piece (16 bytes, or 2 elements) of kRotaryHeads rows of a token.
// The grid: chunks of tokens of one sequence; in each, blocks for q, for k and for v: a block has rows of one kind.
struct RotaryArgs {
  HeadRows rows[kRotaryRowSets];
  int64_t batch_size = 0, seqlen = 0;
  int32_t chunk_tokens = 0;      // the last chunk of a sequence may have fewer
  int32_t blocks_per_chunk = 0;  // 0: nothing to do
  int64_t num_chunks = 0;
  int64_t first_chunk = 0;  // of this launch
  NarrowDiv by_blocks_per_chunk;
  FastDiv chunks_per_batch;

  const char* cos = nullptr;
  const char* sin = nullptr;
  DType table_dtype = DType::kFloat32;
  bool split = false;             // a pair is (i, i + rotary_dim / 2), and a piece two runs half a row apart
  int32_t table_piece_bytes = 0;  // of the angles of a piece
  int64_t cos_stride_batch = 0, cos_stride_seq = 0;  // bytes; batch: 0 unless gathered
  int64_t sin_stride_batch = 0, sin_stride_seq = 0;
  IndexArray positions;                                          // empty: a token's own index
  int64_t positions_stride_batch = 0, positions_stride_seq = 0;  // elements
  int64_t max_position = 0;

  IndexArray slot_mapping;
  int64_t slot_mapping_stride_batch = 0, slot_mapping_stride_seq = 0;  // elements
  int64_t num_slots = 0;
  FastDiv page_size;
};

struct RotaryPlan {
  RotaryArgs args;
  DType dtype = DType::kFloat32;
  bool caches = false;               // k and v go into a cache
  const char* why_scalar = nullptr;  // null: pieces of 16 bytes, else why one element at a time
};

// Pure; pointers may be null, which counts as aligned. Throws Unsupported for more than 2 million heads.
RotaryPlan plan_rotary(const RotaryParams& params);
RotaryPlan plan_append_kv(const AppendKVParams& params);
RotaryPlan plan_rotary_append_kv(const RotaryAppendKVParams& params);

// What the threads of a block have in common.
struct RotaryBlock {
  int64_t batch, first_seq;
  uint32_t num_tokens;
  int32_t block;  // of its chunk
};

DLATTN_HOST_DEVICE RotaryBlock locate_block(const RotaryArgs& args, uint32_t block) {
  const uint32_t chunk_of_launch = args.by_blocks_per_chunk.div(block);
  int64_t chunk = args.first_chunk + chunk_of_launch;
  RotaryBlock at;
  at.block = static_cast<int32_t>(block - chunk_of_launch * static_cast<uint32_t>(args.blocks_per_chunk));
  at.batch = 0;
  if (args.batch_size > 1) {
    at.batch = args.chunks_per_batch.div(chunk);
    chunk -= at.batch * args.chunks_per_batch.divisor;
  }
  at.first_seq = chunk * args.chunk_tokens;
  const int64_t left = args.seqlen - at.first_seq;
  at.num_tokens = static_cast<uint32_t>(left < args.chunk_tokens ? left : args.chunk_tokens);
  return at;
}

struct RotaryItem {
  uint32_t token;  // of the chunk
  uint32_t head;   // the first of them
  int32_t piece;
};

DLATTN_HOST_DEVICE RotaryItem locate_item(const HeadRows& rows, uint32_t item) {
  RotaryItem at;
  at.token = rows.by_items_per_token.div(item);
  const uint32_t rest = item - at.token * static_cast<uint32_t>(rows.items_per_token);
  const uint32_t group = rows.by_pieces.div(rest);
  at.head = group * kRotaryHeads;
  at.piece = static_cast<int32_t>(rest - group * static_cast<uint32_t>(rows.pieces));
  return at;
}

// Elements of a row that make up a piece of `pairs` pairs.
struct RotaryPiece {
  int32_t first, distance;  // `pairs` elements from first on and as many from first + distance on
  bool rotated;
  bool whole;  // false: a copied row has nothing from first + distance on
};

DLATTN_HOST_DEVICE RotaryPiece piece_at(const HeadRows& rows, bool split, int pairs, int piece) {
  RotaryPiece at;
  at.rotated = piece < rows.rotated_pieces;
  const int begin = at.rotated ? 0 : rows.rotary_dim;
  const int length = at.rotated ? rows.rotary_dim : rows.dim - rows.rotary_dim;
  const int index = at.rotated ? piece : piece - rows.rotated_pieces;
  at.first = begin + index * (split ? pairs : 2 * pairs);
  at.distance = split ? (length + 1) / 2 : pairs;
  at.whole = at.first + at.distance < rows.dim;
  return at;
}

}  // namespace dlattn::cuda
