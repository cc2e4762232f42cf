// Dense and ragged attention.
#include "core/validate.h"
#include "core/validate_options.h"
#include "element.h"

namespace dlattn::core {

void validate(const char* op, const AttentionParams& p, Depth depth) {
  const Check check(op);
  check_heads(check, p);
  check.at_least("q.seqlen_q", p.seqlen_q, 0);
  check.at_least("k.seqlen_k", p.seqlen_k, 0);
  const OptionShapes shapes{p.batch_size, p.num_heads, p.seqlen_q, p.seqlen_k};
  check_options(check, p.options, shapes);
  if (p.seqlens_k.data != nullptr) check.index_dtype("seqlens_k.dtype", p.seqlens_k.dtype);
  if (depth == Depth::kShapes) return;

  const bool queries = p.batch_size > 0 && p.seqlen_q > 0 && p.num_heads > 0;
  const bool keys = p.batch_size > 0 && p.seqlen_k > 0 && p.num_kv_heads > 0;
  check.pointer("q", p.q, p.dtype, queries);
  check.pointer("k", p.k, p.dtype, keys);
  check.pointer("v", p.v, p.dtype, keys);
  if (p.out != nullptr || depth == Depth::kCall) check.pointer("out", p.out, p.dtype, queries);
  if (p.lse != nullptr) check.pointer("lse", p.lse, DType::kFloat32, queries);
  if (p.seqlens_k.data != nullptr) check.pointer("seqlens_k", p.seqlens_k.data, p.seqlens_k.dtype, p.batch_size > 0);
  check_option_pointers(check, p.options, shapes);

  const int64_t b = p.batch_size, h = p.num_heads, h_kv = p.num_kv_heads;
  const Region outputs[] = {
      Region("out", p.out, p.dtype, {{b, p.out_stride_batch}, {p.seqlen_q, p.out_stride_seq}, {h, p.out_stride_head}},
             p.head_dim_v),
      Region("lse", p.lse, DType::kFloat32, {{b, p.lse_stride_batch}, {h, p.lse_stride_head}}, p.seqlen_q)};
  Region inputs[7] = {
      Region("q", p.q, p.dtype, {{b, p.q_stride_batch}, {p.seqlen_q, p.q_stride_seq}, {h, p.q_stride_head}},
             p.head_dim),
      Region("k", p.k, p.dtype, {{b, p.k_stride_batch}, {p.seqlen_k, p.k_stride_seq}, {h_kv, p.k_stride_head}},
             p.head_dim),
      Region("v", p.v, p.dtype, {{b, p.v_stride_batch}, {p.seqlen_k, p.v_stride_seq}, {h_kv, p.v_stride_head}},
             p.head_dim_v),
      Region("seqlens_k", p.seqlens_k.data, p.seqlens_k.dtype, {}, b)};
  const int count = 4 + option_regions(p.options, shapes, inputs + 4);
  check_memory(check, outputs, 2, inputs, count);

  if (p.device.type != DeviceType::kCPU || p.seqlens_k.data == nullptr) return;
  for (int64_t i = 0; i < b; ++i) {
    check.element("seqlens_k", i, -1, index_at(p.seqlens_k, i), 0, p.seqlen_k, "k.seqlen_k");
  }
}

void validate(const char* op, const VarlenAttentionParams& p, Depth depth) {
  const Check check(op);
  check_heads(check, p);
  check.at_least("q.total_q", p.total_q, 0);
  check.at_least("k.total_k", p.total_k, 0);
  const OptionShapes shapes{p.batch_size, p.num_heads, -1, -1};
  check_options(check, p.options, shapes);
  check.index_dtype("cu_seqlens_q.dtype", p.cu_seqlens_q.dtype);
  check.index_dtype("cu_seqlens_k.dtype", p.cu_seqlens_k.dtype);
  if (depth == Depth::kShapes) return;

  const bool queries = p.total_q > 0 && p.num_heads > 0;
  const bool keys = p.total_k > 0 && p.num_kv_heads > 0;
  check.pointer("q", p.q, p.dtype, queries);
  check.pointer("k", p.k, p.dtype, keys);
  check.pointer("v", p.v, p.dtype, keys);
  if (p.out != nullptr || depth == Depth::kCall) check.pointer("out", p.out, p.dtype, queries);
  if (p.lse != nullptr) check.pointer("lse", p.lse, DType::kFloat32, queries);
  check.pointer("cu_seqlens_q", p.cu_seqlens_q.data, p.cu_seqlens_q.dtype, true);
  check.pointer("cu_seqlens_k", p.cu_seqlens_k.data, p.cu_seqlens_k.dtype, true);
  check_option_pointers(check, p.options, shapes);

  const int64_t h = p.num_heads, h_kv = p.num_kv_heads;
  const Region outputs[] = {
      Region("out", p.out, p.dtype, {{p.total_q, p.out_stride_token}, {h, p.out_stride_head}}, p.head_dim_v),
      Region("lse", p.lse, DType::kFloat32, {{h, p.lse_stride_head}}, p.total_q)};
  Region inputs[8] = {Region("q", p.q, p.dtype, {{p.total_q, p.q_stride_token}, {h, p.q_stride_head}}, p.head_dim),
                      Region("k", p.k, p.dtype, {{p.total_k, p.k_stride_token}, {h_kv, p.k_stride_head}}, p.head_dim),
                      Region("v", p.v, p.dtype, {{p.total_k, p.v_stride_token}, {h_kv, p.v_stride_head}}, p.head_dim_v),
                      Region("cu_seqlens_q", p.cu_seqlens_q.data, p.cu_seqlens_q.dtype, {}, p.batch_size + 1),
                      Region("cu_seqlens_k", p.cu_seqlens_k.data, p.cu_seqlens_k.dtype, {}, p.batch_size + 1)};
  const int count = 5 + option_regions(p.options, shapes, inputs + 5);
  check_memory(check, outputs, 2, inputs, count);

  if (p.device.type != DeviceType::kCPU) return;
  const int64_t longest_q =
      check_cu_seqlens(check, "cu_seqlens_q", p.cu_seqlens_q, p.batch_size, p.total_q, "q.total_q");
  const int64_t longest_k =
      check_cu_seqlens(check, "cu_seqlens_k", p.cu_seqlens_k, p.batch_size, p.total_k, "k.total_k");
  check_mask_covers(check, p.options.mask, longest_q, longest_k);
}

}  // namespace dlattn::core
