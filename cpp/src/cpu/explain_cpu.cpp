// What a call would run on the CPU.
#include <algorithm>

#include "backend.h"
#include "cpu/isa.h"
#include "element.h"

namespace dlattn::cpu {
namespace {

Explanation make(const std::string& kernel, DType dtype, const std::string& why) {
  Explanation e;
  e.supported = true;
  e.backend = "cpu";
  e.kernel = kernel + "_cpu_" + current_isa() + suffix_of(dtype);
  e.reason = why;
  return e;
}

Explanation attention_kernel(const char* form, int64_t rows, DType dtype) {
  const std::string name = std::string("attention_") + form;
  if (rows <= kFewRows) {
    return make(name + "_few", dtype,
                std::to_string(rows) + " query rows share a kv head (at most " + std::to_string(kFewRows) +
                    "): keys are read as they lie");
  }
  return make(name + "_tile", dtype, std::to_string(rows) + " query rows share a kv head: keys are packed into tiles");
}

int64_t group_of(int64_t num_heads, int64_t num_kv_heads) { return num_kv_heads == 0 ? 1 : num_heads / num_kv_heads; }

// The longest sequence's queries; total_q if the array is not there yet. Its values are not validated: wrong ones are skipped.
int64_t longest_query(const IndexArray& cu_seqlens, int64_t batch_size, int64_t total_q) {
  if (cu_seqlens.data == nullptr) return total_q;
  int64_t longest = 0;
  for (int64_t b = 0; b < batch_size; ++b) {
    const int64_t begin = index_at(cu_seqlens, b), end = index_at(cu_seqlens, b + 1);
    if (begin >= 0 && end <= total_q) longest = std::max(longest, end - begin);
  }
  return longest;
}

}  // namespace

Explanation explain(const AttentionParams& p, AttentionOp) {
  return attention_kernel("dense", p.seqlen_q * group_of(p.num_heads, p.num_kv_heads), p.dtype);
}

Explanation explain(const VarlenAttentionParams& p) {
  const int64_t queries = longest_query(p.cu_seqlens_q, p.batch_size, p.total_q);
  return attention_kernel("varlen", queries * group_of(p.num_heads, p.num_kv_heads), p.dtype);
}

Explanation explain(const PagedAttentionParams& p) {
  const int64_t queries = p.total_q > 0 ? longest_query(p.cu_seqlens_q, p.batch_size, p.total_q) : p.seqlen_q;
  return attention_kernel("paged", queries * group_of(p.num_heads, p.num_kv_heads), p.dtype);
}

Explanation explain(const RotaryParams& p) { return make("rotary", p.dtype, "the only one"); }
Explanation explain(const AppendKVParams& p) { return make("append_kv", p.dtype, "the only one"); }
Explanation explain(const RotaryAppendKVParams& p) { return make("rotary_append_kv", p.rotary.dtype, "the only one"); }
Explanation explain(const MergeParams& p) { return make("merge_states", p.dtype, "the only one"); }

}  // namespace dlattn::cpu
