// Every field of every parameter struct: what is wrong is named, with what it is and what was expected, and nothing is written.
#include <cmath>
#include <functional>
#include <vector>

#include "dlattn/dlattn.h"
#include "support/message.h"

namespace dlattn::test {
namespace {

// A sound call of each operation, in float32, on buffers of its own.
struct Buffers {
  std::vector<float> q = std::vector<float>(256, 0.5f), k = q, v = q, out = std::vector<float>(256, 7.0f), out2 = out;
  std::vector<float> lse = std::vector<float>(64, 7.0f), k_cache = std::vector<float>(1024, 7.0f), v_cache = k_cache;
  std::vector<float> table = std::vector<float>(64, 0.25f);
  std::vector<unsigned char> mask = std::vector<unsigned char>(256, 1);
  std::vector<int32_t> lengths{3, 5}, cu_q{0, 2, 4}, cu_k{0, 1, 6}, slots{0, 3, -1, 5}, positions{0, 1, 2, 3};
  std::vector<int32_t> pages{0, 1, 99, 2, 3, 99};

  bool written() const {
    for (const auto* buffer : {&out, &out2, &lse, &k_cache, &v_cache}) {
      for (float x : *buffer) {
        if (x != 7.0f) return true;
      }
    }
    return false;
  }
};

AttentionParams dense(Buffers& m) {  // batch 2, len 2 and 5, heads 4 and 2, dim 8
  AttentionParams p;
  p.batch_size = 2, p.seqlen_q = 2, p.seqlen_k = 5, p.num_heads = 4, p.num_kv_heads = 2, p.head_dim = p.head_dim_v = 8;
  p.q = m.q.data(), p.k = m.k.data(), p.v = m.v.data(), p.out = m.out.data(), p.lse = m.lse.data();
  p.q_stride_batch = p.out_stride_batch = 64, p.q_stride_seq = p.out_stride_seq = 32;
  p.q_stride_head = p.out_stride_head = 8;
  p.k_stride_batch = p.v_stride_batch = 80, p.k_stride_seq = p.v_stride_seq = 16, p.k_stride_head = p.v_stride_head = 8;
  p.lse_stride_batch = 8, p.lse_stride_head = 2;
  p.seqlens_k = {m.lengths.data(), DType::kInt32};
  return p;
}

void give_mask(AttentionOptions& options, Buffers& m, int64_t seqlen_q, int64_t seqlen_k) {
  options.mask.data = m.mask.data();
  options.mask.seqlen_q = seqlen_q, options.mask.seqlen_k = seqlen_k, options.mask.stride_seq_q = seqlen_k;
}

VarlenAttentionParams varlen(Buffers& m) {  // 4 and 6 tokens
  VarlenAttentionParams p;
  p.batch_size = 2, p.total_q = 4, p.total_k = 6, p.num_heads = 4, p.num_kv_heads = 2, p.head_dim = p.head_dim_v = 8;
  p.q = m.q.data(), p.k = m.k.data(), p.v = m.v.data(), p.out = m.out.data(), p.lse = m.lse.data();
  p.q_stride_token = p.out_stride_token = 32, p.q_stride_head = p.out_stride_head = 8;
  p.k_stride_token = p.v_stride_token = 16, p.k_stride_head = p.v_stride_head = 8;
  p.lse_stride_head = 4;
  p.cu_seqlens_q = {m.cu_q.data(), DType::kInt32}, p.cu_seqlens_k = {m.cu_k.data(), DType::kInt32};
  return p;
}

PagedAttentionParams paged(Buffers& m) {  // 4 pages of 4 rows; lengths 3 and 5
  PagedAttentionParams p;
  p.batch_size = 2, p.seqlen_q = 1, p.num_heads = 4, p.num_kv_heads = 2, p.head_dim = p.head_dim_v = 8;
  p.num_pages = 4, p.page_size = 4, p.max_pages = 3;
  p.q = m.q.data(), p.k_cache = m.k.data(), p.v_cache = m.v.data(), p.out = m.out.data();
  p.q_stride_batch = p.out_stride_batch = p.q_stride_seq = p.out_stride_seq = 32;
  p.q_stride_head = p.out_stride_head = 8;
  p.k_stride_page = p.v_stride_page = 64, p.k_stride_seq = p.v_stride_seq = 16, p.k_stride_head = p.v_stride_head = 8;
  p.page_table = {m.pages.data(), DType::kInt32}, p.page_table_stride_batch = 3;
  p.seqlens_k = {m.lengths.data(), DType::kInt32};
  return p;
}

PagedAttentionParams paged_prefill(Buffers& m) {
  PagedAttentionParams p = paged(m);
  p.seqlen_q = 0, p.total_q = 4, p.cu_seqlens_q = {m.cu_q.data(), DType::kInt32};
  return p;
}

RotaryParams rotary(Buffers& m) {  // batch 2, len 2
  RotaryParams p;
  p.batch_size = 2, p.seqlen = 2, p.num_heads = 4, p.num_kv_heads = 2, p.head_dim = 8, p.rotary_dim = 6;
  p.max_position = 8;
  p.q = m.q.data(), p.k = m.k.data(), p.q_out = m.out.data(), p.k_out = m.out2.data();
  p.q_stride_batch = p.q_out_stride_batch = 64, p.q_stride_seq = p.q_out_stride_seq = 32;
  p.k_stride_batch = p.k_out_stride_batch = 32, p.k_stride_seq = p.k_out_stride_seq = 16;
  p.q_stride_head = p.q_out_stride_head = p.k_stride_head = p.k_out_stride_head = 8;
  p.cos = m.table.data(), p.sin = m.table.data() + 32, p.cos_stride_seq = p.sin_stride_seq = 3;
  p.positions = {m.positions.data(), DType::kInt32}, p.positions_stride_batch = 2;
  return p;
}

AppendKVParams append(Buffers& m) {
  AppendKVParams p;
  p.batch_size = 2, p.seqlen = 2, p.num_kv_heads = 2, p.head_dim = p.head_dim_v = 8, p.num_pages = 4, p.page_size = 4;
  p.k = m.k.data(), p.v = m.v.data(), p.k_cache = m.k_cache.data(), p.v_cache = m.v_cache.data();
  p.k_stride_batch = p.v_stride_batch = 32, p.k_stride_seq = p.v_stride_seq = 16, p.k_stride_head = p.v_stride_head = 8;
  p.k_cache_stride_page = p.v_cache_stride_page = 64, p.k_cache_stride_seq = p.v_cache_stride_seq = 16;
  p.k_cache_stride_head = p.v_cache_stride_head = 8;
  p.slot_mapping = {m.slots.data(), DType::kInt32}, p.slot_mapping_stride_batch = 2;
  return p;
}

RotaryAppendKVParams fused(Buffers& m) {
  RotaryAppendKVParams p{rotary(m), append(m)};
  p.rotary.k_out = nullptr;
  return p;
}

struct Merge : MergeParams {
  AttentionState parts[2];
};

Merge merge(Buffers& m) {
  Merge p;
  p.batch_size = 2, p.seqlen_q = 2, p.num_heads = 4, p.head_dim_v = 8, p.num_states = 2;
  for (AttentionState& s : p.parts) {
    s = {m.q.data(), m.table.data(), 64, 32, 8, 8, 2, 1};
  }
  p.out = m.out.data(), p.lse = m.lse.data();
  p.out_stride_batch = 64, p.out_stride_seq = 32, p.out_stride_head = 8, p.lse_stride_batch = 8, p.lse_stride_head = 2;
  return p;
}

// One change to a sound call, and the text it must give.
template <typename Params>
struct Fault {
  const char* text;
  std::function<void(Params&, Buffers&)> change;
};

template <typename Params, typename Call>
void expect_faults(Params (*make)(Buffers&), Call call, const std::vector<Fault<Params>>& faults) {
  {
    Buffers buffers;
    Params sound = make(buffers);
    EXPECT_NO_THROW(call(sound));
  }
  for (const Fault<Params>& fault : faults) {
    SCOPED_TRACE(fault.text);
    Buffers buffers;
    Params params = make(buffers);
    fault.change(params, buffers);
    EXPECT_EQ(invalid_argument([&] { call(params); }), fault.text);
    EXPECT_FALSE(buffers.written());
  }
}

using A = AttentionParams;
using B = Buffers;

TEST(ValidateTest, DenseShapes) {
  expect_faults<A>(
      dense, [](const A& p) { attn_prefill(p); },
      {
          {"attn_prefill: q.dtype is int32, expected float32, float16 or bfloat16",
           [](A& p, B&) { p.dtype = DType::kInt32; }},
          {"attn_prefill: q.dtype is bool, expected float32, float16 or bfloat16",
           [](A& p, B&) { p.dtype = DType::kBool; }},
          {"attn_prefill: device.index is 1, expected 0 (= the one of the CPU)", [](A& p, B&) { p.device.index = 1; }},
          {"attn_prefill: device.index is -1, expected at least 0",
           [](A& p, B&) { p.device = {DeviceType::kCUDA, -1}; }},
          {"attn_prefill: batch_size is -1, expected at least 0", [](A& p, B&) { p.batch_size = -1; }},
          {"attn_prefill: q.seqlen_q is -2, expected at least 0", [](A& p, B&) { p.seqlen_q = -2; }},
          {"attn_prefill: k.seqlen_k is -3, expected at least 0", [](A& p, B&) { p.seqlen_k = -3; }},
          {"attn_prefill: q.num_heads is -4, expected at least 0", [](A& p, B&) { p.num_heads = -4; }},
          {"attn_prefill: k.num_kv_heads is 0, expected at least 1", [](A& p, B&) { p.num_kv_heads = 0; }},
          {"attn_prefill: q.num_heads is 4, expected a multiple of 3 (= k.num_kv_heads)",
           [](A& p, B&) { p.num_kv_heads = 3; }},
          {"attn_prefill: q.head_dim is 0, expected 1..256", [](A& p, B&) { p.head_dim = 0; }},
          {"attn_prefill: q.head_dim is 257, expected 1..256", [](A& p, B&) { p.head_dim = 257; }},
          {"attn_prefill: v.head_dim_v is 300, expected 1..256", [](A& p, B&) { p.head_dim_v = 300; }},
      });
}

TEST(ValidateTest, Options) {
  expect_faults<A>(
      dense, [](const A& p) { attention(p); },
      {
          {"attention: scale is nan, expected a finite number", [](A& p, B&) { p.options.scale = NAN; }},
          {"attention: scale is inf, expected a finite number", [](A& p, B&) { p.options.scale = INFINITY; }},
          {"attention: softcap is -1.000000, expected a finite number >= 0", [](A& p, B&) { p.options.softcap = -1; }},
          {"attention: softcap is nan, expected a finite number >= 0", [](A& p, B&) { p.options.softcap = NAN; }},
          {"attention: window_left is -2, expected at least -1", [](A& p, B&) { p.options.window_left = -2; }},
          {"attention: window_right is -7, expected at least -1", [](A& p, B&) { p.options.window_right = -7; }},
          {"attention: mask.dtype is int64, expected bool, float32, float16 or bfloat16",
           [](A& p, B& m) { give_mask(p.options, m, 2, 5), p.options.mask.dtype = DType::kInt64; }},
          {"attention: mask.batch_size is 3, expected 1 or 2 (= batch_size)",
           [](A& p, B& m) { give_mask(p.options, m, 2, 5), p.options.mask.batch_size = 3; }},
          {"attention: mask.num_heads is 2, expected 1 or 4 (= q.num_heads)",
           [](A& p, B& m) { give_mask(p.options, m, 2, 5), p.options.mask.num_heads = 2; }},
          {"attention: mask.seqlen_q is 1, expected 2 (= q.seqlen_q)",
           [](A& p, B& m) { give_mask(p.options, m, 1, 5); }},
          {"attention: mask.seqlen_k is 6, expected 5 (= k.seqlen_k)",
           [](A& p, B& m) { give_mask(p.options, m, 2, 6); }},
          {"attention: sinks.dtype is int32, expected float32, float16 or bfloat16",
           [](A& p, B& m) { p.options.sinks = {m.table.data(), DType::kInt32}; }},
          {"attention: alibi_slopes.dtype is bool, expected float32, float16 or bfloat16",
           [](A& p, B& m) { p.options.alibi_slopes = {m.table.data(), DType::kBool}; }},
      });
}

TEST(ValidateTest, DensePointersAndValues) {
  expect_faults<A>(
      dense, [](const A& p) { attn_decode(p); },
      {
          {"attn_decode: q.data is null, expected a pointer to its elements", [](A& p, B&) { p.q = nullptr; }},
          {"attn_decode: k.data is null, expected a pointer to its elements", [](A& p, B&) { p.k = nullptr; }},
          {"attn_decode: v.data is null, expected a pointer to its elements", [](A& p, B&) { p.v = nullptr; }},
          {"attn_decode: out.data is null, expected a pointer to its elements", [](A& p, B&) { p.out = nullptr; }},
          {"attn_decode: k.data is 2 bytes off alignment, expected a multiple of 4 bytes (= the size of float32)",
           [](A& p, B&) { p.k = static_cast<const char*>(p.k) + 2; }},
          {"attn_decode: seqlens_k.dtype is float32, expected int32 or int64",
           [](A& p, B&) { p.seqlens_k.dtype = DType::kFloat32; }},
          {"attn_decode: seqlens_k[1] is 6, expected 0..5 (= k.seqlen_k)", [](A&, B& m) { m.lengths[1] = 6; }},
          {"attn_decode: seqlens_k[0] is -1, expected 0..5 (= k.seqlen_k)", [](A&, B& m) { m.lengths[0] = -1; }},
          {"attn_decode: q.strides reach beyond the address space", [](A& p, B&) { p.q_stride_batch = INT64_MAX / 2; }},
          {"attn_decode: out.strides put two elements at one address, expected one for each",
           [](A& p, B&) { p.out_stride_seq = 0; }},
          {"attn_decode: lse.strides put two elements at one address, expected one for each",
           [](A& p, B&) { p.lse_stride_head = 1; }},
          {"attn_decode: out overlaps q in memory, expected separate memory", [](A& p, B& m) { p.out = m.q.data(); }},
          {"attn_decode: out overlaps v in memory, expected separate memory",
           [](A& p, B& m) { p.out = m.v.data() + 12; }},
          {"attn_decode: lse overlaps out in memory, expected separate memory",
           [](A& p, B& m) { p.lse = m.out.data() + 100; }},
          {"attn_decode: lse overlaps k in memory, expected separate memory", [](A& p, B& m) { p.lse = m.k.data(); }},
      });
}

TEST(ValidateTest, Varlen) {
  using P = VarlenAttentionParams;
  expect_faults<P>(
      varlen, [](const P& p) { attn_varlen(p); },
      {
          {"attn_varlen: q.total_q is -1, expected at least 0", [](P& p, B&) { p.total_q = -1; }},
          {"attn_varlen: k.total_k is -1, expected at least 0", [](P& p, B&) { p.total_k = -1; }},
          {"attn_varlen: cu_seqlens_q.dtype is bool, expected int32 or int64",
           [](P& p, B&) { p.cu_seqlens_q.dtype = DType::kBool; }},
          {"attn_varlen: cu_seqlens_k.data is null, expected a pointer to its elements",
           [](P& p, B&) { p.cu_seqlens_k.data = nullptr; }},
          {"attn_varlen: cu_seqlens_q[0] is -1, expected 0..4 (= q.total_q)", [](P&, B& m) { m.cu_q[0] = -1; }},
          {"attn_varlen: cu_seqlens_q[2] is 5, expected 0..4 (= q.total_q)", [](P&, B& m) { m.cu_q[2] = 5; }},
          {"attn_varlen: cu_seqlens_k[2] is 0, expected at least 1 (= the entry before it)",
           [](P&, B& m) { m.cu_k[2] = 0; }},
          {"attn_varlen: mask.seqlen_k is 4, expected at least 5 (= the longest sequence of keys)",
           [](P& p, B& m) { give_mask(p.options, m, 2, 4); }},
          {"attn_varlen: mask.seqlen_q is 1, expected at least 2 (= the longest sequence of queries)",
           [](P& p, B& m) { give_mask(p.options, m, 1, 5); }},
          {"attn_varlen: out overlaps q in memory, expected separate memory",
           [](P& p, B& m) { p.out = m.q.data() + 8; }},
      });
}

TEST(ValidateTest, Paged) {
  using P = PagedAttentionParams;
  expect_faults<P>(
      paged, [](const P& p) { attn_paged_decode(p); },
      {
          {"attn_paged_decode: k_cache.page_size is 0, expected at least 1", [](P& p, B&) { p.page_size = 0; }},
          {"attn_paged_decode: k_cache.num_pages is -1, expected at least 0", [](P& p, B&) { p.num_pages = -1; }},
          {"attn_paged_decode: page_table.max_pages is -1, expected at least 0", [](P& p, B&) { p.max_pages = -1; }},
          {"attn_paged_decode: page_table.dtype is float16, expected int32 or int64",
           [](P& p, B&) { p.page_table.dtype = DType::kFloat16; }},
          {"attn_paged_decode: seqlens_k.data is null, expected a pointer to its elements",
           [](P& p, B&) { p.seqlens_k.data = nullptr; }},
          {"attn_paged_decode: cu_seqlens_q is given, expected none (= that is attn_paged_prefill)",
           [](P& p, B& m) { p.cu_seqlens_q = {m.cu_q.data(), DType::kInt32}; }},
          {"attn_paged_decode: seqlens_k[1] is 13, expected 0..12 (= page_table.max_pages * k_cache.page_size)",
           [](P&, B& m) { m.lengths[1] = 13; }},
          {"attn_paged_decode: page_table[1, 1] is 4, expected 0..3 (= k_cache.num_pages - 1)",
           [](P&, B& m) { m.pages[4] = 4; }},
          {"attn_paged_decode: page_table[0, 0] is -1, expected 0..3 (= k_cache.num_pages - 1)",
           [](P&, B& m) { m.pages[0] = -1; }},
          {"attn_paged_decode: mask.seqlen_k is 4, expected at least 5 (= the longest sequence of keys)",
           [](P& p, B& m) { give_mask(p.options, m, 1, 4); }},
          {"attn_paged_decode: out overlaps v_cache in memory, expected separate memory",
           [](P& p, B& m) { p.out = m.v.data(); }},
      });
  expect_faults<P>(
      paged_prefill, [](const P& p) { attn_paged_prefill(p); },
      {
          {"attn_paged_prefill: cu_seqlens_q.data is null, expected a pointer to its elements",
           [](P& p, B&) { p.cu_seqlens_q.data = nullptr; }},
          {"attn_paged_prefill: q.seqlen_q is 2, expected 0 (= packed queries are total_q)",
           [](P& p, B&) { p.seqlen_q = 2; }},
          {"attn_paged_prefill: cu_seqlens_q[1] is 9, expected 0..4 (= q.total_q)", [](P&, B& m) { m.cu_q[1] = 9; }},
      });
}

TEST(ValidateTest, PagesThatTheWindowHidesMayBeAnything) {
  Buffers m;
  PagedAttentionParams p = paged(m);
  m.pages[3] = 12345;  // keys 0..3 of sequence 1, whose query stands at key 4
  EXPECT_EQ(invalid_argument([&] { attn_paged_decode(p); }),
            "attn_paged_decode: page_table[1, 0] is 12345, expected 0..3 (= k_cache.num_pages - 1)");
  p.options.window_left = 0;
  EXPECT_NO_THROW(attn_paged_decode(p));
  p.options.window_left = 1;
  EXPECT_THROW(attn_paged_decode(p), InvalidArgument);
}

TEST(ValidateTest, Rotary) {
  using P = RotaryParams;
  expect_faults<P>(
      rotary, [](const P& p) { rotary_embedding(p); },
      {
          {"rotary_embedding: q.seqlen is -1, expected at least 0", [](P& p, B&) { p.seqlen = -1; }},
          {"rotary_embedding: k.num_kv_heads is -1, expected at least 0", [](P& p, B&) { p.num_kv_heads = -1; }},
          {"rotary_embedding: cos.rotary_dim is 10, expected 0..8 (= twice the columns of cos, at most q.head_dim)",
           [](P& p, B&) { p.rotary_dim = 10; }},
          {"rotary_embedding: cos.rotary_dim is 5, expected an even number", [](P& p, B&) { p.rotary_dim = 5; }},
          {"rotary_embedding: cos.dtype is int32, expected float32, float16 or bfloat16",
           [](P& p, B&) { p.table_dtype = DType::kInt32; }},
          {"rotary_embedding: positions.dtype is float32, expected int32 or int64",
           [](P& p, B&) { p.positions.dtype = DType::kFloat32; }},
          {"rotary_embedding: positions is given, expected none (= cos and sin hold a row for each token already)",
           [](P& p, B&) { p.gathered = true; }},
          {"rotary_embedding: cos.max_position is 1, expected at least 2 (= q.seqlen, without positions)",
           [](P& p, B&) { p.positions.data = nullptr, p.max_position = 1; }},
          {"rotary_embedding: positions[1, 0] is 8, expected 0..7 (= cos.max_position - 1)",
           [](P&, B& m) { m.positions[2] = 8; }},
          {"rotary_embedding: positions[0, 1] is -1, expected 0..7 (= cos.max_position - 1)",
           [](P&, B& m) { m.positions[1] = -1; }},
          {"rotary_embedding: sin.data is null, expected a pointer to its elements", [](P& p, B&) { p.sin = nullptr; }},
          {"rotary_embedding: k_out.data is null, expected a pointer to its elements",
           [](P& p, B&) { p.k_out = nullptr; }},
          {"rotary_embedding: q_out overlaps q in memory, expected separate memory",
           [](P& p, B& m) { p.q_out = m.q.data() + 8; }},
          {"rotary_embedding: q_out overlaps k in memory, expected separate memory",
           [](P& p, B& m) { p.q_out = m.k.data(); }},
          {"rotary_embedding: k_out overlaps q_out in memory, expected separate memory",
           [](P& p, B& m) { p.k_out = m.out.data(); }},
      });
  Buffers m;
  RotaryParams p = rotary(m);
  p.q_out = m.q.data(), p.k_out = m.k.data();  // in place
  EXPECT_NO_THROW(rotary_embedding(p));
}

TEST(ValidateTest, Append) {
  using P = AppendKVParams;
  expect_faults<P>(
      append, [](const P& p) { append_kv(p); },
      {
          {"append_kv: k.seqlen is -1, expected at least 0", [](P& p, B&) { p.seqlen = -1; }},
          {"append_kv: k.head_dim is 257, expected 1..256", [](P& p, B&) { p.head_dim = 257; }},
          {"append_kv: k_cache.page_size is 0, expected at least 1", [](P& p, B&) { p.page_size = 0; }},
          {"append_kv: slot_mapping.dtype is bool, expected int32 or int64",
           [](P& p, B&) { p.slot_mapping.dtype = DType::kBool; }},
          {"append_kv: slot_mapping[0, 1] is 16, expected -1..15 (= k_cache.num_pages * k_cache.page_size - 1)",
           [](P&, B& m) { m.slots[1] = 16; }},
          {"append_kv: slot_mapping[1, 1] is -2, expected -1..15 (= k_cache.num_pages * k_cache.page_size - 1)",
           [](P&, B& m) { m.slots[3] = -2; }},
          {"append_kv: slot_mapping holds slot 3 twice, expected each slot once", [](P&, B& m) { m.slots[3] = 3; }},
          {"append_kv: v_cache overlaps k_cache in memory, expected separate memory",
           [](P& p, B& m) { p.v_cache = m.k_cache.data(); }},
          {"append_kv: k_cache overlaps k in memory, expected separate memory",
           [](P& p, B& m) { p.k = m.k_cache.data(); }},
          {"append_kv: k_cache.strides put two elements at one address, expected one for each",
           [](P& p, B&) { p.k_cache_stride_page = 8; }},
          {"append_kv: v.data is null, expected a pointer to its elements", [](P& p, B&) { p.v = nullptr; }},
      });
  Buffers m;
  m.slots = {-1, -1, -1, -1};  // skips may repeat
  EXPECT_NO_THROW(append_kv(append(m)));
}

TEST(ValidateTest, RotaryAppend) {
  using P = RotaryAppendKVParams;
  expect_faults<P>(
      fused, [](const P& p) { rotary_append_kv(p); },
      {
          {"rotary_append_kv: k_cache.dtype is float16, expected float32 (= q.dtype)",
           [](P& p, B&) { p.append.dtype = DType::kFloat16; }},
          {"rotary_append_kv: k_cache.device is cuda:0, expected cpu (= q.device)",
           [](P& p, B&) { p.append.device.type = DeviceType::kCUDA; }},
          {"rotary_append_kv: v.seqlen is 1, expected 2 (= q.seqlen)", [](P& p, B&) { p.append.seqlen = 1; }},
          {"rotary_append_kv: v.batch_size is 1, expected 2 (= q.batch_size)",
           [](P& p, B&) { p.append.batch_size = 1; }},
          {"rotary_append_kv: k_cache.num_kv_heads is 1, expected 2 (= k.num_kv_heads)",
           [](P& p, B&) { p.append.num_kv_heads = 1; }},
          {"rotary_append_kv: k_cache.head_dim is 4, expected 8 (= k.head_dim)",
           [](P& p, B&) { p.append.head_dim = 4; }},
          {"rotary_append_kv: positions[0, 0] is 8, expected 0..7 (= cos.max_position - 1)",
           [](P&, B& m) { m.positions[0] = 8; }},
          {"rotary_append_kv: slot_mapping[0, 0] is 99, expected -1..15 (= k_cache.num_pages * k_cache.page_size - 1)",
           [](P&, B& m) { m.slots[0] = 99; }},
          {"rotary_append_kv: k_cache overlaps q in memory, expected separate memory",
           [](P& p, B& m) { p.append.k_cache = m.q.data(); }},
      });
}

TEST(ValidateTest, Merge) {
  const auto call = [](Merge& p) {
    p.states = p.states ? p.states : p.parts;
    merge_attention_states(p);
  };
  expect_faults<Merge>(
      merge, call,
      {
          {"merge_attention_states: outs.num_states is 0, expected at least 1", [](Merge& p, B&) { p.num_states = 0; }},
          {"merge_attention_states: outs.head_dim_v is 0, expected 1..256", [](Merge& p, B&) { p.head_dim_v = 0; }},
          {"merge_attention_states: outs.dtype is int32, expected float32, float16 or bfloat16",
           [](Merge& p, B&) { p.dtype = DType::kInt32; }},
          {"merge_attention_states: outs.data is null, expected a pointer to its elements",
           [](Merge& p, B&) { p.parts[1].out = nullptr; }},
          {"merge_attention_states: lses.data is null, expected a pointer to its elements",
           [](Merge& p, B&) { p.parts[1].lse = nullptr; }},
          {"merge_attention_states: out overlaps outs in memory, expected separate memory",
           [](Merge& p, B& m) { p.parts[0].out = m.out.data() + 8; }},
          {"merge_attention_states: lse overlaps lses in memory, expected separate memory",
           [](Merge& p, B& m) { p.parts[0].lse = m.lse.data() + 1; }},
      });
  Buffers m;
  Merge p = merge(m);
  p.states = p.parts;
  p.parts[0].out = p.out, p.parts[0].lse = p.lse;  // into the first state
  EXPECT_NO_THROW(merge_attention_states(p));
}

// Sizes whose product does not fit must not pass as small ones.
TEST(ValidateTest, ProductsOfSizesThatOverflow) {
  Buffers m;
  const int64_t half = int64_t{1} << 32;
  int32_t slot = 0;
  AppendKVParams append;
  append.batch_size = append.seqlen = half, append.num_kv_heads = 1, append.head_dim = append.head_dim_v = 8;
  append.num_pages = append.page_size = 1;
  append.k = m.k.data(), append.v = m.v.data(), append.k_cache = m.k_cache.data(), append.v_cache = m.v_cache.data();
  append.slot_mapping = {&slot, DType::kInt32}, append.slot_mapping_stride_seq = 0;
  EXPECT_THROW(append_kv(append), InvalidArgument);
  RotaryParams rotary;
  rotary.batch_size = rotary.seqlen = half, rotary.head_dim = 8;
  EXPECT_THROW(rotary_embedding(rotary), InvalidArgument);
  VarlenAttentionParams ragged = varlen(m);
  ragged.total_q = int64_t{1} << 62;
  ragged.q_stride_token = 0;
  EXPECT_THROW(attn_varlen(ragged), InvalidArgument);
  EXPECT_FALSE(m.written());
}

TEST(ValidateTest, EmptyProblemsNeedNoPointers) {
  AttentionParams p;
  p.head_dim = p.head_dim_v = 8;
  EXPECT_NO_THROW(attention(p));
  p.batch_size = 3, p.num_heads = p.num_kv_heads = 2, p.seqlen_k = 0;
  EXPECT_NO_THROW(attention(p));
  RotaryParams r;
  r.head_dim = 8;
  EXPECT_NO_THROW(rotary_embedding(r));
}

TEST(ValidateTest, QuestionsCheckShapesOnly) {
  Buffers m;
  AttentionParams p = dense(m);
  p.q = p.k = p.v = p.out = nullptr;
  EXPECT_TRUE(explain(p).supported);
  p.num_kv_heads = 3;
  EXPECT_EQ(invalid_argument([&] { explain(p); }),
            "attention: q.num_heads is 4, expected a multiple of 3 (= k.num_kv_heads)");
  EXPECT_THROW(attn_workspace_size(p), InvalidArgument);
}

TEST(ValidateTest, CudaTensorsWithoutTheBackendSayHowToBuildIt) {
  if (info().cuda_compiled) GTEST_SKIP() << "the CUDA backend is built";
  Buffers m;
  AttentionParams p = dense(m);
  p.device.type = DeviceType::kCUDA;
  try {
    attn_decode(p);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const NotCompiled& error) {
    EXPECT_NE(std::string(error.what()).find("attn_decode: the CUDA backend was not built"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("-DDLATTN_CUDA=ON"), std::string::npos);
  }
  const Explanation why = explain(p);
  EXPECT_FALSE(why.supported);
  EXPECT_EQ(why.backend, "cuda");
  EXPECT_NE(why.reason.find("-DDLATTN_CUDA=ON"), std::string::npos);
  p.head_dim = -1;  // the caller's mistake comes first
  EXPECT_THROW(attn_decode(p), InvalidArgument);
}

}  // namespace
}  // namespace dlattn::test
