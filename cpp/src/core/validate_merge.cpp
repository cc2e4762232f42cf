// Merging partial attention results.
#include "core/overlap.h"
#include "core/validate.h"

namespace dlattn::core {
namespace {

Region out_region(const char* name, const void* data, const MergeParams& p, int64_t batch, int64_t seq, int64_t head) {
  return Region(name, data, p.dtype, {{p.batch_size, batch}, {p.seqlen_q, seq}, {p.num_heads, head}}, p.head_dim_v);
}

Region lse_region(const char* name, const float* data, const MergeParams& p, int64_t batch, int64_t head, int64_t seq) {
  return Region(name, data, DType::kFloat32, {{p.batch_size, batch}, {p.num_heads, head}, {p.seqlen_q, seq}}, 1);
}

}  // namespace

void validate(const char* op, const MergeParams& p, Depth depth) {
  const Check check(op);
  check.device(p.device);
  check.float_dtype("outs.dtype", p.dtype);
  check.at_least("outs.batch_size", p.batch_size, 0);
  check.at_least("outs.seqlen_q", p.seqlen_q, 0);
  check.at_least("outs.num_heads", p.num_heads, 0);
  check.in_range("outs.head_dim_v", p.head_dim_v, 1, 256);
  check.at_least("outs.num_states", p.num_states, 1);
  if (depth == Depth::kShapes) return;

  const bool rows = p.batch_size > 0 && p.seqlen_q > 0 && p.num_heads > 0;
  if (p.states == nullptr) check.fail("states", "null", "an array of num_states partial results");
  if (p.out != nullptr || depth == Depth::kCall) check.pointer("out", p.out, p.dtype, rows);
  if (p.lse != nullptr) check.pointer("lse", p.lse, DType::kFloat32, rows);
  const Region outputs[] = {out_region("out", p.out, p, p.out_stride_batch, p.out_stride_seq, p.out_stride_head),
                            lse_region("lse", p.lse, p, p.lse_stride_batch, p.lse_stride_head, p.lse_stride_seq)};
  for (int64_t i = 0; i < p.num_states; ++i) {
    const AttentionState& state = p.states[i];
    check.pointer("outs", state.out, p.dtype, rows);
    check.pointer("lses", state.lse, DType::kFloat32, rows);
    const Region inputs[] = {
        out_region("outs", state.out, p, state.out_stride_batch, state.out_stride_seq, state.out_stride_head),
        lse_region("lses", state.lse, p, state.lse_stride_batch, state.lse_stride_head, state.lse_stride_seq)};
    check_memory(check, outputs, 2, inputs, 2, /*in_place=*/2);
  }
}

}  // namespace dlattn::core
