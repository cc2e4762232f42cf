#include "core/validate_options.h"

#include <algorithm>
#include <cmath>

#include "element.h"

namespace dlattn::core {
namespace {

bool has_elements(const AttentionMask& mask) {
  return mask.batch_size > 0 && mask.num_heads > 0 && mask.seqlen_q > 0 && mask.seqlen_k > 0;
}

void check_broadcast(const Check& check, const char* name, int64_t got, int64_t full, const char* why) {
  if (got != 1 && got != full) check.fail(name, std::to_string(got), "1 or " + std::to_string(full), why);
}

}  // namespace

void check_options(const Check& check, const AttentionOptions& options, const OptionShapes& shapes) {
  if (options.scale && !std::isfinite(*options.scale)) {
    check.fail("scale", std::to_string(*options.scale), "a finite number");
  }
  if (!(options.softcap >= 0.0f) || !std::isfinite(options.softcap)) {
    check.fail("softcap", std::to_string(options.softcap), "a finite number >= 0");
  }
  check.at_least("window_left", options.window_left, -1);
  check.at_least("window_right", options.window_right, -1);

  const AttentionMask& mask = options.mask;
  if (mask.data != nullptr) {
    if (mask.dtype != DType::kBool && !is_float(mask.dtype)) {
      check.fail("mask.dtype", name_of(mask.dtype), "bool, float32, float16 or bfloat16");
    }
    check_broadcast(check, "mask.batch_size", mask.batch_size, shapes.batch_size, "batch_size");
    check_broadcast(check, "mask.num_heads", mask.num_heads, shapes.num_heads, "q.num_heads");
    if (shapes.seqlen_q >= 0) {
      check.equal("mask.seqlen_q", mask.seqlen_q, shapes.seqlen_q, "q.seqlen_q");
    } else {
      check.at_least("mask.seqlen_q", mask.seqlen_q, 0);
    }
    if (shapes.seqlen_k >= 0) {
      check.equal("mask.seqlen_k", mask.seqlen_k, shapes.seqlen_k, "k.seqlen_k");
    } else {
      check.at_least("mask.seqlen_k", mask.seqlen_k, 0);
    }
  }
  if (options.sinks.data != nullptr) check.float_dtype("sinks.dtype", options.sinks.dtype);
  if (options.alibi_slopes.data != nullptr) check.float_dtype("alibi_slopes.dtype", options.alibi_slopes.dtype);
}

void check_option_pointers(const Check& check, const AttentionOptions& options, const OptionShapes& shapes) {
  const AttentionMask& mask = options.mask;
  if (mask.data != nullptr) check.pointer("mask", mask.data, mask.dtype, has_elements(mask));
  const bool heads = shapes.num_heads > 0;
  if (options.sinks.data != nullptr) check.pointer("sinks", options.sinks.data, options.sinks.dtype, heads);
  if (options.alibi_slopes.data != nullptr) {
    check.pointer("alibi_slopes", options.alibi_slopes.data, options.alibi_slopes.dtype, heads);
  }
}

int option_regions(const AttentionOptions& options, const OptionShapes& shapes, Region* regions) {
  const AttentionMask& mask = options.mask;
  if (mask.data != nullptr) {
    regions[0] = Region("mask", mask.data, mask.dtype,
                        {{mask.batch_size, mask.stride_batch},
                         {mask.num_heads, mask.stride_head},
                         {mask.seqlen_q, mask.stride_seq_q},
                         {mask.seqlen_k, mask.stride_seq_k}},
                        1);
  }
  regions[1] = Region("sinks", options.sinks.data, options.sinks.dtype, {}, shapes.num_heads);
  regions[2] = Region("alibi_slopes", options.alibi_slopes.data, options.alibi_slopes.dtype,
                      {{shapes.batch_size, options.alibi_stride_batch}}, shapes.num_heads);
  return 3;
}

int64_t check_cu_seqlens(const Check& check, const char* name, const IndexArray& array, int64_t batch_size,
                         int64_t total, const char* total_name) {
  int64_t longest = 0, previous = index_at(array, 0);
  check.element(name, 0, -1, previous, 0, total, total_name);
  for (int64_t i = 1; i <= batch_size; ++i) {
    const int64_t current = index_at(array, i);
    if (current < previous) {
      check.fail(std::string(name) + "[" + std::to_string(i) + "]", std::to_string(current),
                 "at least " + std::to_string(previous), "the entry before it");
    }
    check.element(name, i, -1, current, 0, total, total_name);
    longest = std::max(longest, current - previous);
    previous = current;
  }
  return longest;
}

void check_mask_covers(const Check& check, const AttentionMask& mask, int64_t longest_q, int64_t longest_k) {
  if (mask.data == nullptr) return;
  check.at_least("mask.seqlen_q", mask.seqlen_q, longest_q, "the longest sequence of queries");
  check.at_least("mask.seqlen_k", mask.seqlen_k, longest_k, "the longest sequence of keys");
}

}  // namespace dlattn::core
