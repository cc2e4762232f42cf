// From tensors to parameters: shapes, dtypes, devices and layouts must agree, and the message says which does not.
#include <functional>
#include <vector>

#include "dlattn/tensor_view.h"
#include "support/message.h"
#include "support/tensor.h"

namespace dlattn::test {
namespace {

// Contiguous, over memory that is never touched.
TensorView view(std::vector<int64_t> shape, DType dtype = DType::kFloat32) {
  static char memory[16];
  TensorView v;
  v.data = memory;
  v.dtype = dtype;
  v.ndim = static_cast<int32_t>(shape.size());
  int64_t step = 1;
  for (int i = v.ndim - 1; i >= 0; --i) {
    v.shape[i] = shape[static_cast<size_t>(i)];
    v.strides[i] = step;
    step *= v.shape[i];
  }
  return v;
}

AttentionTensors dense() {
  AttentionTensors t;
  t.q = view({2, 3, 4, 8}), t.k = view({2, 5, 2, 8}), t.v = view({2, 5, 2, 6});
  return t;
}

AttentionTensors varlen() {
  AttentionTensors t;
  t.q = view({7, 4, 8}), t.k = view({9, 2, 8}), t.v = view({9, 2, 6});
  t.cu_seqlens_q = view({3}, DType::kInt32), t.cu_seqlens_k = view({3}, DType::kInt64);
  return t;
}

AttentionTensors paged() {
  AttentionTensors t;
  t.q = view({2, 1, 4, 8}), t.k = view({10, 16, 2, 8}), t.v = view({10, 16, 2, 6});
  t.page_table = view({2, 5}, DType::kInt32), t.seqlens_k = view({2}, DType::kInt32);
  return t;
}

RotaryTensors rotary() {
  RotaryTensors t;
  t.q = view({2, 3, 4, 8}), t.k = view({2, 3, 2, 8}), t.cos = view({20, 3}), t.sin = view({20, 3});
  return t;
}

AppendTensors append() {
  AppendTensors t;
  t.k = view({2, 3, 2, 8}), t.v = view({2, 3, 2, 6});
  t.k_cache = view({10, 16, 2, 8}), t.v_cache = view({10, 16, 2, 6}), t.slot_mapping = view({2, 3}, DType::kInt32);
  return t;
}

template <typename Tensors>
struct Fault {
  const char* text;
  std::function<void(Tensors&)> change;
};

template <typename Tensors, typename Make>
void expect_faults(Tensors sound, Make make, const std::vector<Fault<Tensors>>& faults) {
  EXPECT_NO_THROW(make(sound));
  for (const Fault<Tensors>& fault : faults) {
    SCOPED_TRACE(fault.text);
    Tensors tensors = sound;
    fault.change(tensors);
    EXPECT_EQ(invalid_argument([&] { make(tensors); }), fault.text);
  }
}

using A = AttentionTensors;

TEST(TensorViewTest, DenseFaults) {
  expect_faults<A>(
      dense(), [](const A& t) { make_attention_params("attn_prefill", t); },
      {
          {"attn_prefill: q is missing, expected an array [batch, len, heads, dim]", [](A& t) { t.q = {}; }},
          {"attn_prefill: v is missing, expected an array [batch, len, heads, dim]", [](A& t) { t.v = {}; }},
          {"attn_prefill: q.ndim is 3, expected 4 (= [batch, len, heads, dim])", [](A& t) { t.q = view({3, 4, 8}); }},
          {"attn_prefill: k.head_dim is 6, expected 8 (= q.head_dim)", [](A& t) { t.k = view({2, 5, 2, 6}); }},
          {"attn_prefill: k.batch_size is 1, expected 2 (= q.batch_size)", [](A& t) { t.k = view({1, 5, 2, 8}); }},
          {"attn_prefill: v.seqlen_k is 4, expected 5 (= k.seqlen_k)", [](A& t) { t.v = view({2, 4, 2, 6}); }},
          {"attn_prefill: v.num_kv_heads is 1, expected 2 (= k.num_kv_heads)", [](A& t) { t.v = view({2, 5, 1, 6}); }},
          {"attn_prefill: q.dtype is int32, expected float32, float16 or bfloat16",
           [](A& t) { t.q.dtype = DType::kInt32; }},
          {"attn_prefill: v.dtype is float16, expected float32 (= q.dtype)", [](A& t) { t.v.dtype = DType::kFloat16; }},
          {"attn_prefill: k.device is cuda:1, expected cpu (= q.device)",
           [](A& t) { t.k.device = {DeviceType::kCUDA, 1}; }},
          {"attn_prefill: q.strides[3] is 2, expected 1 (= a contiguous last axis)", [](A& t) { t.q.strides[3] = 2; }},
          {"attn_prefill: q.data is null, expected a pointer to its elements", [](A& t) { t.q.data = nullptr; }},
          {"attn_prefill: out.head_dim_v is 8, expected 6 (= v.head_dim_v)", [](A& t) { t.out = view({2, 3, 4, 8}); }},
          {"attn_prefill: out.seqlen_q is 1, expected 3 (= q.seqlen_q)", [](A& t) { t.out = view({2, 1, 4, 6}); }},
          {"attn_prefill: out.dtype is bfloat16, expected float32 (= q.dtype)",
           [](A& t) { t.out = view({2, 3, 4, 6}, DType::kBFloat16); }},
          {"attn_prefill: out is read-only, expected a writable array",
           [](A& t) { t.out = view({2, 3, 4, 6}), t.out.read_only = true; }},
          {"attn_prefill: lse.dtype is float16, expected float32 (= lse is float32)",
           [](A& t) { t.lse = view({2, 4, 3}, DType::kFloat16); }},
          {"attn_prefill: lse.num_heads is 3, expected 4 (= q.num_heads)", [](A& t) { t.lse = view({2, 3, 4}); }},
          {"attn_prefill: lse is read-only, expected a writable array",
           [](A& t) { t.lse = view({2, 4, 3}), t.lse.read_only = true; }},
          {"attn_prefill: mask.ndim is 1, expected 2, 3 or 4 (= [batch, len_k], [batch, len_q, len_k] or [batch, "
           "heads, len_q, len_k])",
           [](A& t) { t.mask = view({5}, DType::kBool); }},
          {"attn_prefill: mask.dtype is int32, expected bool, float32, float16 or bfloat16",
           [](A& t) { t.mask = view({2, 5}, DType::kInt32); }},
          {"attn_prefill: mask.seqlen_k is 3, expected 5 (= k.seqlen_k)",
           [](A& t) { t.mask = view({2, 3}, DType::kBool); }},
          {"attn_prefill: mask.batch_size is 3, expected 2 (= q.batch_size, or 1)",
           [](A& t) { t.mask = view({3, 3, 5}, DType::kBool); }},
          {"attn_prefill: mask.num_heads is 2, expected 4 (= q.num_heads, or 1)",
           [](A& t) { t.mask = view({2, 2, 3, 5}); }},
          {"attn_prefill: sinks.ndim is 2, expected 1 (= [heads])", [](A& t) { t.sinks = view({1, 4}); }},
          {"attn_prefill: sinks.num_heads is 2, expected 4 (= q.num_heads)", [](A& t) { t.sinks = view({2}); }},
          {"attn_prefill: alibi_slopes.batch_size is 1, expected 2 (= q.batch_size)",
           [](A& t) { t.alibi_slopes = view({1, 4}); }},
          {"attn_prefill: seqlens_k.dtype is float32, expected int32 or int64", [](A& t) { t.seqlens_k = view({2}); }},
          {"attn_prefill: seqlens_k.shape[0] is 3, expected 2 (= q.batch_size)",
           [](A& t) { t.seqlens_k = view({3}, DType::kInt32); }},
          {"attn_prefill: seqlens_k.strides[0] is 2, expected 1 (= a contiguous last axis)",
           [](A& t) { t.seqlens_k = view({2}, DType::kInt32), t.seqlens_k.strides[0] = 2; }},
      });
}

TEST(TensorViewTest, RaggedFaults) {
  expect_faults<A>(
      varlen(), [](const A& t) { make_varlen_params("attn_varlen", t); },
      {
          {"attn_varlen: q.ndim is 4, expected 3 (= [tokens, heads, dim])", [](A& t) { t.q = view({1, 7, 4, 8}); }},
          {"attn_varlen: v.total_k is 8, expected 9 (= k.total_k)", [](A& t) { t.v = view({8, 2, 6}); }},
          {"attn_varlen: cu_seqlens_q is missing, expected an array [batch + 1]", [](A& t) { t.cu_seqlens_q = {}; }},
          {"attn_varlen: cu_seqlens_q.shape[0] is 0, expected at least 1 (= batch_size + 1)",
           [](A& t) { t.cu_seqlens_q = view({0}, DType::kInt32); }},
          {"attn_varlen: cu_seqlens_k.shape[0] is 4, expected 3 (= cu_seqlens_q.shape[0])",
           [](A& t) { t.cu_seqlens_k = view({4}, DType::kInt32); }},
          {"attn_varlen: cu_seqlens_k.dtype is bool, expected int32 or int64",
           [](A& t) { t.cu_seqlens_k.dtype = DType::kBool; }},
          {"attn_varlen: lse.total_q is 8, expected 7 (= q.total_q)", [](A& t) { t.lse = view({4, 8}); }},
      });
  expect_faults<A>(
      paged(), [](const A& t) { make_paged_params("attn_paged_decode", t); },
      {
          {"attn_paged_decode: k_cache.head_dim is 6, expected 8 (= q.head_dim)",
           [](A& t) { t.k = view({10, 16, 2, 6}); }},
          {"attn_paged_decode: v_cache.page_size is 8, expected 16 (= k_cache.page_size)",
           [](A& t) { t.v = view({10, 8, 2, 6}); }},
          {"attn_paged_decode: v_cache.num_pages is 9, expected 10 (= k_cache.num_pages)",
           [](A& t) { t.v = view({9, 16, 2, 6}); }},
          {"attn_paged_decode: page_table.batch_size is 3, expected 2 (= q.batch_size)",
           [](A& t) { t.page_table = view({3, 5}, DType::kInt32); }},
          {"attn_paged_decode: page_table.ndim is 1, expected 2 (= [batch, max_pages])",
           [](A& t) { t.page_table = view({5}, DType::kInt32); }},
          {"attn_paged_decode: page_table.dtype is float32, expected int32 or int64",
           [](A& t) { t.page_table.dtype = DType::kFloat32; }},
          {"attn_paged_decode: seqlens_k is missing, expected an array [batch]", [](A& t) { t.seqlens_k = {}; }},
      });
}

TEST(TensorViewTest, RotaryFaults) {
  using R = RotaryTensors;
  expect_faults<R>(
      rotary(), [](const R& t) { make_rotary_params("rotary_embedding", t); },
      {
          {"rotary_embedding: q is missing, expected an array [batch, len, heads, dim]", [](R& t) { t.q = t.k = {}; }},
          {"rotary_embedding: k.head_dim is 6, expected 8 (= q.head_dim)", [](R& t) { t.k = view({2, 3, 2, 6}); }},
          {"rotary_embedding: k.seqlen is 4, expected 3 (= q.seqlen)", [](R& t) { t.k = view({2, 4, 2, 8}); }},
          {"rotary_embedding: k.ndim is 3, expected 4 (= q.ndim)", [](R& t) { t.k = view({6, 2, 8}); }},
          {"rotary_embedding: q_out.num_heads is 2, expected 4 (= q.num_heads)",
           [](R& t) { t.q_out = view({2, 3, 2, 8}); }},
          {"rotary_embedding: k_out is read-only, expected a writable array",
           [](R& t) { t.k_out = t.k, t.k_out.read_only = true; }},
          {"rotary_embedding: cos is missing, expected an array [max_position, rotary_dim / 2]",
           [](R& t) { t.cos = {}; }},
          {"rotary_embedding: sin.shape[1] is 4, expected 3 (= cos.shape[1])", [](R& t) { t.sin = view({20, 4}); }},
          {"rotary_embedding: sin.dtype is float16, expected float32 (= cos.dtype)",
           [](R& t) { t.sin.dtype = DType::kFloat16; }},
          {"rotary_embedding: cos.seqlen is 5, expected 3 (= q.seqlen)", [](R& t) { t.cos = t.sin = view({2, 5, 3}); }},
          {"rotary_embedding: positions.shape[0] is 5, expected 6 (= the number of tokens)",
           [](R& t) { t.positions = view({5}, DType::kInt32); }},
          {"rotary_embedding: positions.shape[1] is 2, expected 3 (= seqlen)",
           [](R& t) { t.positions = view({2, 2}, DType::kInt32); }},
          {"rotary_embedding: positions.dtype is float32, expected int32 or int64",
           [](R& t) { t.positions = view({6}); }},
      });
}

TEST(TensorViewTest, AppendFaults) {
  using P = AppendTensors;
  expect_faults<P>(
      append(), [](const P& t) { make_append_params("append_kv", t); },
      {
          {"append_kv: v.seqlen is 2, expected 3 (= k.seqlen)", [](P& t) { t.v = view({2, 2, 2, 6}); }},
          {"append_kv: v.num_kv_heads is 1, expected 2 (= k.num_kv_heads)", [](P& t) { t.v = view({2, 3, 1, 6}); }},
          {"append_kv: k_cache.dtype is float16, expected float32 (= k.dtype)",
           [](P& t) { t.k_cache.dtype = DType::kFloat16; }},
          {"append_kv: v_cache.head_dim_v is 8, expected 6 (= v.head_dim_v)",
           [](P& t) { t.v_cache = view({10, 16, 2, 8}); }},
          {"append_kv: k_cache is read-only, expected a writable array", [](P& t) { t.k_cache.read_only = true; }},
          {"append_kv: slot_mapping is missing, expected an array [tokens], or [batch, len]",
           [](P& t) { t.slot_mapping = {}; }},
          {"append_kv: slot_mapping.shape[0] is 7, expected 6 (= the number of tokens)",
           [](P& t) { t.slot_mapping = view({7}, DType::kInt64); }},
      });
}

TEST(TensorViewTest, MergeFaults) {
  const auto merge = [](std::vector<StateTensors> inputs, StateTensors output) {
    AttentionState states[4];
    make_merge_params("merge_attention_states", inputs.data(), static_cast<int64_t>(inputs.size()), output,
                      Layout::kBLHD, states);
  };
  const StateTensors state{view({2, 3, 4, 8}), view({2, 4, 3})};
  EXPECT_NO_THROW(merge({state, state}, {}));
  EXPECT_EQ(invalid_argument([&] { merge({}, {}); }),
            "merge_attention_states: outs.num_states is 0, expected at least 1");
  EXPECT_EQ(invalid_argument([&] { merge({state, {view({2, 3, 4, 6}), state.lse}}, {}); }),
            "merge_attention_states: outs[1].head_dim_v is 6, expected 8 (= outs[0].head_dim_v)");
  EXPECT_EQ(invalid_argument([&] { merge({state, {state.out, view({2, 3, 4})}}, {}); }),
            "merge_attention_states: lses[1].num_heads is 3, expected 4 (= q.num_heads)");
  EXPECT_EQ(invalid_argument([&] { merge({state, {state.out, {}}}, {}); }),
            "merge_attention_states: lses[1] is missing, expected an array [batch, heads, len]");
}

TEST(TensorViewTest, LayoutsGiveTheSameParameters) {
  AttentionTensors t = dense();
  const AttentionParams p = make_attention_params("attention", t);
  t.layout = Layout::kBHLD;
  for (TensorView* x : {&t.q, &t.k, &t.v}) {
    std::swap(x->shape[1], x->shape[2]);
    std::swap(x->strides[1], x->strides[2]);
  }
  const AttentionParams swapped = make_attention_params("attention", t);
  EXPECT_EQ(swapped.seqlen_q, p.seqlen_q);
  EXPECT_EQ(swapped.seqlen_k, p.seqlen_k);
  EXPECT_EQ(swapped.num_kv_heads, p.num_kv_heads);
  EXPECT_EQ(swapped.q_stride_seq, p.q_stride_seq);
  EXPECT_EQ(swapped.k_stride_head, p.k_stride_head);
  // An output that is not given is contiguous in the layout.
  EXPECT_EQ(p.out, nullptr);
  EXPECT_EQ(p.out_stride_seq, 4 * 6);
  EXPECT_EQ(p.out_stride_head, 6);
  EXPECT_EQ(swapped.out_stride_seq, 6);
  EXPECT_EQ(swapped.out_stride_head, 3 * 6);
  EXPECT_EQ(swapped.lse_stride_batch, 4 * 3);
}

TEST(TensorViewTest, MasksOfEveryRank) {
  AttentionTensors t = dense();
  t.mask = view({2, 5}, DType::kBool);
  AttentionMask mask = make_attention_params("attention", t).options.mask;
  EXPECT_EQ(mask.stride_seq_q, 0);
  EXPECT_EQ(mask.seqlen_q, 3);
  EXPECT_EQ(mask.stride_batch, 5);
  t.mask = view({1, 3, 5});
  mask = make_attention_params("attention", t).options.mask;
  EXPECT_EQ(mask.batch_size, 1);
  EXPECT_EQ(mask.num_heads, 1);
  EXPECT_EQ(mask.stride_seq_q, 5);
  t.mask = view({2, 4, 3, 5}, DType::kBFloat16);
  t.mask.strides[3] = 2;  // masks may have any last stride
  mask = make_attention_params("attention", t).options.mask;
  EXPECT_EQ(mask.stride_head, 15);
  EXPECT_EQ(mask.stride_seq_k, 2);
}

TEST(TensorViewTest, EmptyTensorsMayHaveAnyStridesAndNoData) {
  AttentionTensors t = dense();
  t.k = view({2, 0, 2, 8}), t.v = view({2, 0, 2, 6});
  t.k.data = t.v.data = nullptr;
  t.k.strides[3] = 0;
  EXPECT_EQ(make_attention_params("attention", t).seqlen_k, 0);
  t = dense();
  t.q = view({2, 3, 4, 1}), t.k = view({2, 5, 2, 1});
  t.q.strides[3] = 17;  // one element: no stride
  EXPECT_EQ(make_attention_params("attention", t).head_dim, 1);
}

}  // namespace
}  // namespace dlattn::test
