// Rotary embedding and writes into a paged cache.
#include <algorithm>
#include <vector>

#include "core/overlap.h"
#include "core/validate.h"
#include "element.h"

namespace dlattn::core {
namespace {

void check_tokens(const Check& check, const char* name, int64_t batch_size, int64_t seqlen) {
  int64_t tokens = 0;
  if (__builtin_mul_overflow(batch_size, seqlen, &tokens)) {
    check.fail(name, std::to_string(batch_size), "a number of tokens within 64 bits", "batch_size * seqlen");
  }
}

void check_rotary_shapes(const Check& check, const RotaryParams& p) {
  check.device(p.device);
  check.float_dtype("q.dtype", p.dtype);
  check.at_least("q.batch_size", p.batch_size, 0);
  check.at_least("q.seqlen", p.seqlen, 0);
  check_tokens(check, "q.batch_size", p.batch_size, p.seqlen);
  check.at_least("q.num_heads", p.num_heads, 0);
  check.at_least("k.num_kv_heads", p.num_kv_heads, 0);
  check.in_range("q.head_dim", p.head_dim, 1, 256);
  check.in_range("cos.rotary_dim", p.rotary_dim, 0, p.head_dim, "twice the columns of cos, at most q.head_dim");
  if (p.rotary_dim % 2 != 0) check.fail("cos.rotary_dim", std::to_string(p.rotary_dim), "an even number");
  check.float_dtype("cos.dtype", p.table_dtype);
  const bool positions = p.positions.data != nullptr;
  if (positions) check.index_dtype("positions.dtype", p.positions.dtype);
  if (p.gathered) {
    if (positions) check.fail("positions", "given", "none", "cos and sin hold a row for each token already");
    return;
  }
  check.at_least("cos.max_position", p.max_position, 0);
  if (!positions && p.rotary_dim > 0 && p.batch_size > 0) {
    check.at_least("cos.max_position", p.max_position, p.seqlen, "q.seqlen, without positions");
  }
}

// Whether an output that is null is an error.
struct Needed {
  bool q_out, k_out;
};

void check_rotary_pointers(const Check& check, const RotaryParams& p, Needed needed) {
  const bool tokens = p.batch_size > 0 && p.seqlen > 0;
  const bool table = p.rotary_dim > 0 && (p.gathered ? tokens : p.max_position > 0);
  check.pointer("q", p.q, p.dtype, tokens && p.num_heads > 0);
  check.pointer("k", p.k, p.dtype, tokens && p.num_kv_heads > 0);
  if (needed.q_out || p.q_out != nullptr) check.pointer("q_out", p.q_out, p.dtype, tokens && p.num_heads > 0);
  if (needed.k_out || p.k_out != nullptr) check.pointer("k_out", p.k_out, p.dtype, tokens && p.num_kv_heads > 0);
  check.pointer("cos", p.cos, p.table_dtype, table);
  check.pointer("sin", p.sin, p.table_dtype, table);
  if (p.positions.data != nullptr) check.pointer("positions", p.positions.data, p.positions.dtype, tokens);
}

Region table_region(const char* name, const void* data, const RotaryParams& p, int64_t stride_batch,
                    int64_t stride_seq) {
  const Axis batch{p.gathered ? p.batch_size : 1, stride_batch};
  return Region(name, data, p.table_dtype, {batch, {p.gathered ? p.seqlen : p.max_position, stride_seq}},
                p.rotary_dim / 2);
}

// q_out and k_out first, q and k first: the pairs that may be the same memory.
void rotary_regions(const RotaryParams& p, Region* outputs, Region* inputs) {
  const int64_t b = p.batch_size, l = p.seqlen, h = p.num_heads, h_kv = p.num_kv_heads, d = p.head_dim;
  outputs[0] = Region("q_out", p.q_out, p.dtype,
                      {{b, p.q_out_stride_batch}, {l, p.q_out_stride_seq}, {h, p.q_out_stride_head}}, d);
  outputs[1] = Region("k_out", p.k_out, p.dtype,
                      {{b, p.k_out_stride_batch}, {l, p.k_out_stride_seq}, {h_kv, p.k_out_stride_head}}, d);
  inputs[0] = Region("q", p.q, p.dtype, {{b, p.q_stride_batch}, {l, p.q_stride_seq}, {h, p.q_stride_head}}, d);
  inputs[1] = Region("k", p.k, p.dtype, {{b, p.k_stride_batch}, {l, p.k_stride_seq}, {h_kv, p.k_stride_head}}, d);
  inputs[2] = table_region("cos", p.cos, p, p.cos_stride_batch, p.cos_stride_seq);
  inputs[3] = table_region("sin", p.sin, p, p.sin_stride_batch, p.sin_stride_seq);
  inputs[4] = Region("positions", p.positions.data, p.positions.dtype,
                     {{b, p.positions_stride_batch}, {l, p.positions_stride_seq}}, 1);
}

// Packed tokens (batch_size 1) have one index.
void check_token(const Check& check, const char* name, int64_t batch_size, int64_t b, int64_t i, int64_t got,
                 int64_t low, int64_t high, const char* why) {
  check.element(name, batch_size == 1 ? i : b, batch_size == 1 ? -1 : i, got, low, high, why);
}

void check_positions(const Check& check, const RotaryParams& p) {
  if (p.device.type != DeviceType::kCPU || p.positions.data == nullptr || p.gathered || p.rotary_dim == 0) return;
  for (int64_t b = 0; b < p.batch_size; ++b) {
    for (int64_t i = 0; i < p.seqlen; ++i) {
      const int64_t position = index_at(p.positions, b * p.positions_stride_batch + i * p.positions_stride_seq);
      check_token(check, "positions", p.batch_size, b, i, position, 0, p.max_position - 1, "cos.max_position - 1");
    }
  }
}

void check_append_shapes(const Check& check, const AppendKVParams& p) {
  check.device(p.device);
  check.float_dtype("k.dtype", p.dtype);
  check.at_least("k.batch_size", p.batch_size, 0);
  check.at_least("k.seqlen", p.seqlen, 0);
  check_tokens(check, "k.batch_size", p.batch_size, p.seqlen);
  check.at_least("k.num_kv_heads", p.num_kv_heads, 0);
  check.in_range("k.head_dim", p.head_dim, 1, 256);
  check.in_range("v.head_dim_v", p.head_dim_v, 1, 256);
  check.at_least("k_cache.num_pages", p.num_pages, 0);
  check.at_least("k_cache.page_size", p.page_size, 1);
  int64_t slots = 0;
  if (__builtin_mul_overflow(p.num_pages, p.page_size, &slots)) {
    check.fail("k_cache.num_pages", std::to_string(p.num_pages), "a number of slots within 64 bits",
               "num_pages * page_size");
  }
  check.index_dtype("slot_mapping.dtype", p.slot_mapping.dtype);
}

void check_append_pointers(const Check& check, const AppendKVParams& p, bool k) {
  const bool tokens = p.batch_size > 0 && p.seqlen > 0;
  const bool heads = p.num_kv_heads > 0;
  if (k) check.pointer("k", p.k, p.dtype, tokens && heads);
  check.pointer("v", p.v, p.dtype, tokens && heads);
  check.pointer("k_cache", p.k_cache, p.dtype, p.num_pages > 0 && heads);
  check.pointer("v_cache", p.v_cache, p.dtype, p.num_pages > 0 && heads);
  check.pointer("slot_mapping", p.slot_mapping.data, p.slot_mapping.dtype, tokens);
}

// Two caches; k (empty if it comes from the rotary half), v and slot_mapping.
void append_regions(const AppendKVParams& p, Region* outputs, Region* inputs, bool k) {
  const int64_t b = p.batch_size, l = p.seqlen, h = p.num_kv_heads;
  outputs[0] =
      Region("k_cache", p.k_cache, p.dtype,
             {{p.num_pages, p.k_cache_stride_page}, {p.page_size, p.k_cache_stride_seq}, {h, p.k_cache_stride_head}},
             p.head_dim);
  outputs[1] =
      Region("v_cache", p.v_cache, p.dtype,
             {{p.num_pages, p.v_cache_stride_page}, {p.page_size, p.v_cache_stride_seq}, {h, p.v_cache_stride_head}},
             p.head_dim_v);
  if (k) {
    inputs[0] =
        Region("k", p.k, p.dtype, {{b, p.k_stride_batch}, {l, p.k_stride_seq}, {h, p.k_stride_head}}, p.head_dim);
  }
  inputs[1] =
      Region("v", p.v, p.dtype, {{b, p.v_stride_batch}, {l, p.v_stride_seq}, {h, p.v_stride_head}}, p.head_dim_v);
  inputs[2] = Region("slot_mapping", p.slot_mapping.data, p.slot_mapping.dtype,
                     {{b, p.slot_mapping_stride_batch}, {l, p.slot_mapping_stride_seq}}, 1);
}

// In range, and none twice: which of two tokens would stay in the slot depends on threads.
void check_slots(const Check& check, const AppendKVParams& p) {
  if (p.device.type != DeviceType::kCPU) return;
  constexpr int64_t kFew = 32;
  int64_t few[kFew];
  std::vector<int64_t> many;
  if (p.batch_size * p.seqlen > kFew) many.resize(static_cast<size_t>(p.batch_size * p.seqlen));
  int64_t* slots = many.empty() ? few : many.data();
  int64_t count = 0;
  for (int64_t b = 0; b < p.batch_size; ++b) {
    for (int64_t i = 0; i < p.seqlen; ++i) {
      const int64_t slot = index_at(p.slot_mapping, b * p.slot_mapping_stride_batch + i * p.slot_mapping_stride_seq);
      check_token(check, "slot_mapping", p.batch_size, b, i, slot, -1, p.num_pages * p.page_size - 1,
                  "k_cache.num_pages * k_cache.page_size - 1");
      if (slot >= 0) slots[count++] = slot;
    }
  }
  std::sort(slots, slots + count);
  const int64_t* twice = std::adjacent_find(slots, slots + count);
  if (twice != slots + count) {
    check.fail_text("slot_mapping holds slot " + std::to_string(*twice) + " twice, expected each slot once");
  }
}

}  // namespace

void validate(const char* op, const RotaryParams& p, Depth depth) {
  const Check check(op);
  check_rotary_shapes(check, p);
  if (depth == Depth::kShapes) return;
  check_rotary_pointers(check, p, {depth == Depth::kCall, depth == Depth::kCall});
  Region outputs[2], inputs[5];
  rotary_regions(p, outputs, inputs);
  check_memory(check, outputs, 2, inputs, 5, /*in_place=*/2);
  check_positions(check, p);
}

void validate(const char* op, const AppendKVParams& p, Depth depth) {
  const Check check(op);
  check_append_shapes(check, p);
  if (depth == Depth::kShapes) return;
  check_append_pointers(check, p, /*k=*/true);
  Region outputs[2], inputs[3];
  append_regions(p, outputs, inputs, /*k=*/true);
  check_memory(check, outputs, 2, inputs, 3);
  check_slots(check, p);
}

void validate(const char* op, const RotaryAppendKVParams& params, Depth depth) {
  const Check check(op);
  const RotaryParams& rotary = params.rotary;
  const AppendKVParams& append = params.append;
  check_rotary_shapes(check, rotary);
  check_append_shapes(check, append);
  if (append.device.type != rotary.device.type || append.device.index != rotary.device.index) {
    check.fail("k_cache.device", name_of(append.device), name_of(rotary.device), "q.device");
  }
  check.same_dtype("k_cache.dtype", append.dtype, rotary.dtype, "q.dtype");
  check.equal("v.batch_size", append.batch_size, rotary.batch_size, "q.batch_size");
  check.equal("v.seqlen", append.seqlen, rotary.seqlen, "q.seqlen");
  check.equal("k_cache.num_kv_heads", append.num_kv_heads, rotary.num_kv_heads, "k.num_kv_heads");
  check.equal("k_cache.head_dim", append.head_dim, rotary.head_dim, "k.head_dim");
  if (depth == Depth::kShapes) return;

  check_rotary_pointers(check, rotary, {depth == Depth::kCall, false});
  check_append_pointers(check, append, /*k=*/false);
  Region outputs[4], inputs[8];
  rotary_regions(rotary, outputs, inputs);
  append_regions(append, outputs + 2, inputs + 5, /*k=*/false);
  check_memory(check, outputs, 4, inputs, 8, /*in_place=*/2);
  check_positions(check, rotary);
  check_slots(check, append);
}

}  // namespace dlattn::core
