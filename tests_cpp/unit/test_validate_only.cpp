// validate(): the call's own checks and words, values and memory included; nothing runs, and outputs may be made later.
#include <vector>

#include "dlattn/dlattn.h"
#include "support/message.h"

namespace dlattn::test {
namespace {

class ValidateOnlyTest : public ::testing::Test {
 protected:
  // The call and validate() say the same, and nothing is written.
  template <typename Call, typename Validate>
  void expect_same(const char* text, Call call, Validate validate) {
    EXPECT_EQ(invalid_argument(call), text);
    EXPECT_EQ(invalid_argument(validate), text);
    expect_untouched();
  }
  void expect_untouched() const {
    for (float x : out) ASSERT_EQ(x, 7.0f);
  }

  AttentionParams dense() {
    AttentionParams p;
    p.batch_size = 2, p.seqlen_q = 1, p.seqlen_k = 3, p.num_heads = p.num_kv_heads = 1, p.head_dim = p.head_dim_v = 4;
    p.q = in.data(), p.k = in.data(), p.v = in.data(), p.out = out.data();
    p.q_stride_batch = p.out_stride_batch = 4, p.k_stride_batch = p.v_stride_batch = 12;
    p.k_stride_seq = p.v_stride_seq = 4;
    p.seqlens_k = {index.data(), DType::kInt32};
    return p;
  }
  RotaryParams rotary() {
    RotaryParams p;
    p.batch_size = 1, p.seqlen = 3, p.num_heads = 1, p.head_dim = p.rotary_dim = 4, p.max_position = 3;
    p.q = in.data(), p.q_out = out.data(), p.q_stride_seq = p.q_out_stride_seq = 4;
    p.cos = p.sin = in.data(), p.cos_stride_seq = p.sin_stride_seq = 2;
    p.positions = {index.data(), DType::kInt32};
    return p;
  }
  AppendKVParams append() {
    AppendKVParams p;
    p.batch_size = 1, p.seqlen = 3, p.num_kv_heads = 1, p.head_dim = p.head_dim_v = 4, p.num_pages = 1, p.page_size = 4;
    p.k = in.data(), p.v = in.data(), p.k_cache = out.data(), p.v_cache = out.data() + 16;
    p.k_stride_seq = p.v_stride_seq = p.k_cache_stride_seq = p.v_cache_stride_seq = 4;
    p.slot_mapping = {index.data(), DType::kInt32};
    return p;
  }

  std::vector<float> in = std::vector<float>(64, 0.5f), out = std::vector<float>(64, 7.0f);
  std::vector<int32_t> index{0, 1, 2, 3};
};

TEST_F(ValidateOnlyTest, Dense) {
  AttentionParams p = dense();
  validate(p);
  validate(p, AttentionOp::kDecode);
  p.out = nullptr;  // made later
  validate(p);
  EXPECT_EQ(invalid_argument([&] { attention(p); }), "attention: out.data is null, expected a pointer to its elements");
  index[1] = 4;
  EXPECT_EQ(invalid_argument([&] { validate(p, AttentionOp::kPrefill); }),
            "attn_prefill: seqlens_k[1] is 4, expected 0..3 (= k.seqlen_k)");
  index[1] = 1;
  p.out = in.data();
  expect_same(
      "attention: out overlaps q in memory, expected separate memory", [&] { attention(p); }, [&] { validate(p); });
}

TEST_F(ValidateOnlyTest, Varlen) {
  VarlenAttentionParams p;
  p.batch_size = 2, p.total_q = p.total_k = 3, p.num_heads = p.num_kv_heads = 1, p.head_dim = p.head_dim_v = 4;
  p.q = in.data(), p.k = in.data(), p.v = in.data();
  p.q_stride_token = p.k_stride_token = p.v_stride_token = p.out_stride_token = 4;
  p.cu_seqlens_q = p.cu_seqlens_k = {index.data() + 1, DType::kInt32};
  validate(p);
  p.out = out.data();
  index[2] = 4;
  expect_same(
      "attn_varlen: cu_seqlens_q[1] is 4, expected 0..3 (= q.total_q)", [&] { attn_varlen(p); }, [&] { validate(p); });
}

TEST_F(ValidateOnlyTest, Paged) {
  PagedAttentionParams p;
  p.batch_size = 1, p.seqlen_q = 1, p.num_heads = p.num_kv_heads = 1, p.head_dim = p.head_dim_v = 4;
  p.num_pages = 2, p.page_size = 2, p.max_pages = 2;
  p.q = in.data(), p.k_cache = in.data(), p.v_cache = in.data();
  p.k_stride_page = p.v_stride_page = 8, p.k_stride_seq = p.v_stride_seq = 4;
  p.page_table = {index.data(), DType::kInt32}, p.seqlens_k = {index.data() + 3, DType::kInt32};
  validate(p);
  p.out = out.data();
  index[1] = 2;
  expect_same(
      "attn_paged_decode: page_table[0, 1] is 2, expected 0..1 (= k_cache.num_pages - 1)",
      [&] { attn_paged_decode(p); }, [&] { validate(p); });
}

TEST_F(ValidateOnlyTest, Rotary) {
  RotaryParams p = rotary();
  validate(p);
  p.q_out = nullptr;
  validate(p);
  p.q_out = out.data();
  index[2] = 3;
  expect_same(
      "rotary_embedding: positions[2] is 3, expected 0..2 (= cos.max_position - 1)", [&] { rotary_embedding(p); },
      [&] { validate(p); });
}

TEST_F(ValidateOnlyTest, Append) {
  AppendKVParams p = append();
  validate(p);
  index[2] = 1;
  expect_same(
      "append_kv: slot_mapping holds slot 1 twice, expected each slot once", [&] { append_kv(p); },
      [&] { validate(p); });
}

TEST_F(ValidateOnlyTest, RotaryAppend) {
  RotaryAppendKVParams p{rotary(), append()};
  p.rotary.num_kv_heads = 1, p.rotary.k = in.data(), p.rotary.k_stride_seq = 4;
  p.rotary.q_out = nullptr;
  validate(p);
  p.rotary.q_out = out.data();
  expect_same(
      "rotary_append_kv: k_cache overlaps q_out in memory, expected separate memory", [&] { rotary_append_kv(p); },
      [&] { validate(p); });
}

TEST_F(ValidateOnlyTest, Merge) {
  AttentionState state{in.data(), in.data() + 32, 0, 4, 4, 0, 3, 1};
  MergeParams p;
  p.batch_size = 1, p.seqlen_q = 3, p.num_heads = 1, p.head_dim_v = 4, p.num_states = 1, p.states = &state;
  p.out_stride_seq = 4;
  validate(p);
  p.out = in.data() + 4;
  expect_same(
      "merge_attention_states: out overlaps outs in memory, expected separate memory",
      [&] { merge_attention_states(p); }, [&] { validate(p); });
}

}  // namespace
}  // namespace dlattn::test
