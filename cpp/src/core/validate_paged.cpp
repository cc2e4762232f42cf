// Attention against a paged cache.
#include <algorithm>
#include <cstring>

#include "core/validate.h"
#include "core/validate_options.h"
#include "element.h"

namespace dlattn::core {
namespace {

// A page id counts only if a query may read the page: not past the length, and not left of every query's window.
void check_pages(const Check& check, const PagedAttentionParams& p, int64_t batch, int64_t len_q, int64_t len_k) {
  if (len_q == 0 || len_k == 0) return;
  int64_t first_key = 0;  // of the first query, which sees furthest to the left
  if (p.options.window_left >= 0 && p.options.window_left < len_k) {
    first_key = std::max<int64_t>(0, len_k - len_q - p.options.window_left);
  }
  const int64_t last_page = (len_k - 1) / p.page_size;
  for (int64_t page = first_key / p.page_size; page <= last_page; ++page) {
    const int64_t id = index_at(p.page_table, batch * p.page_table_stride_batch + page);
    check.element("page_table", batch, page, id, 0, p.num_pages - 1, "k_cache.num_pages - 1");
  }
}

void check_values(const Check& check, const PagedAttentionParams& p, bool prefill) {
  int64_t longest_q = p.seqlen_q, longest_k = 0;
  if (prefill) {
    longest_q = check_cu_seqlens(check, "cu_seqlens_q", p.cu_seqlens_q, p.batch_size, p.total_q, "q.total_q");
  }
  const int64_t most_keys = p.max_pages * p.page_size;
  for (int64_t i = 0; i < p.batch_size; ++i) {
    const int64_t len_k = index_at(p.seqlens_k, i);
    check.element("seqlens_k", i, -1, len_k, 0, most_keys, "page_table.max_pages * k_cache.page_size");
    longest_k = std::max(longest_k, len_k);
    const int64_t len_q = prefill ? index_at(p.cu_seqlens_q, i + 1) - index_at(p.cu_seqlens_q, i) : p.seqlen_q;
    check_pages(check, p, i, len_q, len_k);
  }
  check_mask_covers(check, p.options.mask, longest_q, longest_k);
}

}  // namespace

void validate(const char* op, const PagedAttentionParams& p, Depth depth) {
  const Check check(op);
  const bool prefill = std::strcmp(op, "attn_paged_prefill") == 0;
  check_heads(check, p);
  check.at_least("q.seqlen_q", p.seqlen_q, 0);
  check.at_least("q.total_q", p.total_q, 0);
  if (prefill) {
    check.equal("q.seqlen_q", p.seqlen_q, 0, "packed queries are total_q");
    check.index_dtype("cu_seqlens_q.dtype", p.cu_seqlens_q.dtype);
  } else {
    check.equal("q.total_q", p.total_q, 0, "the queries of attn_paged_decode are not packed");
    if (p.cu_seqlens_q.data != nullptr) check.fail("cu_seqlens_q", "given", "none", "that is attn_paged_prefill");
  }
  check.at_least("k_cache.num_pages", p.num_pages, 0);
  check.at_least("k_cache.page_size", p.page_size, 1);
  check.at_least("page_table.max_pages", p.max_pages, 0);
  int64_t most_keys = 0;
  if (__builtin_mul_overflow(p.max_pages, p.page_size, &most_keys)) {
    check.fail("page_table.max_pages", std::to_string(p.max_pages), "a number of keys within 64 bits",
               "max_pages * page_size");
  }
  const OptionShapes shapes{p.batch_size, p.num_heads, -1, -1};
  check_options(check, p.options, shapes);
  check.index_dtype("page_table.dtype", p.page_table.dtype);
  check.index_dtype("seqlens_k.dtype", p.seqlens_k.dtype);
  if (depth == Depth::kShapes) return;

  const int64_t batch = prefill ? 1 : p.batch_size;  // of q, out and lse
  const int64_t len = prefill ? p.total_q : p.seqlen_q;
  const bool queries = batch > 0 && len > 0 && p.num_heads > 0;
  const bool keys = p.num_pages > 0 && p.num_kv_heads > 0;
  check.pointer("q", p.q, p.dtype, queries);
  check.pointer("k_cache", p.k_cache, p.dtype, keys);
  check.pointer("v_cache", p.v_cache, p.dtype, keys);
  if (p.out != nullptr || depth == Depth::kCall) check.pointer("out", p.out, p.dtype, queries);
  if (p.lse != nullptr) check.pointer("lse", p.lse, DType::kFloat32, queries);
  check.pointer("page_table", p.page_table.data, p.page_table.dtype, p.batch_size > 0 && p.max_pages > 0);
  check.pointer("seqlens_k", p.seqlens_k.data, p.seqlens_k.dtype, p.batch_size > 0);
  if (prefill) check.pointer("cu_seqlens_q", p.cu_seqlens_q.data, p.cu_seqlens_q.dtype, true);
  check_option_pointers(check, p.options, shapes);

  const int64_t h = p.num_heads, h_kv = p.num_kv_heads;
  const Region outputs[] = {
      Region("out", p.out, p.dtype, {{batch, p.out_stride_batch}, {len, p.out_stride_seq}, {h, p.out_stride_head}},
             p.head_dim_v),
      Region("lse", p.lse, DType::kFloat32, {{batch, p.lse_stride_batch}, {h, p.lse_stride_head}}, len)};
  Region inputs[9] = {
      Region("q", p.q, p.dtype, {{batch, p.q_stride_batch}, {len, p.q_stride_seq}, {h, p.q_stride_head}}, p.head_dim),
      Region("k_cache", p.k_cache, p.dtype,
             {{p.num_pages, p.k_stride_page}, {p.page_size, p.k_stride_seq}, {h_kv, p.k_stride_head}}, p.head_dim),
      Region("v_cache", p.v_cache, p.dtype,
             {{p.num_pages, p.v_stride_page}, {p.page_size, p.v_stride_seq}, {h_kv, p.v_stride_head}}, p.head_dim_v),
      Region("page_table", p.page_table.data, p.page_table.dtype, {{p.batch_size, p.page_table_stride_batch}},
             p.max_pages),
      Region("seqlens_k", p.seqlens_k.data, p.seqlens_k.dtype, {}, p.batch_size),
      Region("cu_seqlens_q", p.cu_seqlens_q.data, p.cu_seqlens_q.dtype, {}, p.batch_size + 1)};
  const int count = 6 + option_regions(p.options, shapes, inputs + 6);
  check_memory(check, outputs, 2, inputs, count);

  if (p.device.type == DeviceType::kCPU) check_values(check, p, prefill);
}

}  // namespace dlattn::core
