// Which views of one buffer count as sharing memory: only those that do.
#include <vector>

#include "dlattn/dlattn.h"
#include "support/message.h"

namespace dlattn::test {
namespace {

// q, k, v and out are slices of one packed buffer [tokens, 4, heads, dim], or of whatever a test makes of it.
class MemoryRulesTest : public ::testing::Test {
 protected:
  static constexpr int64_t kLen = 6, kHeads = 2, kDim = 4, kRow = 4 * kHeads * kDim;

  AttentionParams packed() {
    AttentionParams p;
    p.batch_size = 1, p.seqlen_q = p.seqlen_k = kLen, p.num_heads = p.num_kv_heads = kHeads;
    p.head_dim = p.head_dim_v = kDim;
    p.q = at(0), p.k = at(1), p.v = at(2), p.out = at(3);
    p.q_stride_seq = p.k_stride_seq = p.v_stride_seq = p.out_stride_seq = kRow;
    p.q_stride_head = p.k_stride_head = p.v_stride_head = p.out_stride_head = kDim;
    return p;
  }
  float* at(int64_t part) { return buffer.data() + part * kHeads * kDim; }

  std::vector<float> buffer = std::vector<float>(kLen * kRow * 2, 0.5f);
};

TEST_F(MemoryRulesTest, SlicesOfOnePackedBufferAreApart) { EXPECT_NO_THROW(attention(packed())); }

TEST_F(MemoryRulesTest, OneElementInCommonIsTooMuch) {
  AttentionParams p = packed();
  p.out = at(3) - 1;
  EXPECT_EQ(invalid_argument([&] { attention(p); }), "attention: out overlaps v in memory, expected separate memory");
}

TEST_F(MemoryRulesTest, TransposedSlicesAreApart) {
  AttentionParams p = packed();
  p.out = at(3) + kDim;  // heads from the last to the first
  p.out_stride_head = -kDim;
  EXPECT_NO_THROW(attention(p));
}

TEST_F(MemoryRulesTest, OtherStridesThatMeetAreFound) {
  AttentionParams p = packed();
  p.out = buffer.data() + kRow * kLen + 1;  // every second row, then rows of q again with a step of its own
  EXPECT_NO_THROW(attention(p));
  p.out = buffer.data() + 3 * kRow;
  p.out_stride_seq = kRow / 2;
  EXPECT_THROW(attention(p), InvalidArgument);
}

TEST_F(MemoryRulesTest, StridesOfAxesOfSizeOneDoNotMatter) {
  AttentionParams p = packed();
  p.out_stride_batch = 0, p.q_stride_batch = -123456789;
  EXPECT_NO_THROW(attention(p));
}

TEST_F(MemoryRulesTest, InterleavedButDistinctElementsOfOutAreAllowed) {
  AttentionParams p = packed();
  // Rows 0, 12, ..., 60 and heads 0, 28: neither stride steps over the other axis, yet no two elements meet.
  p.out = buffer.data() + kRow * kLen;
  p.out_stride_seq = 12, p.out_stride_head = 28;
  EXPECT_NO_THROW(attention(p));
  p.out_stride_head = 26;  // 26 = 2 * 12 + 2: into the middle of row 2
  EXPECT_EQ(invalid_argument([&] { attention(p); }),
            "attention: out.strides put two elements at one address, expected one for each");
}

}  // namespace
}  // namespace dlattn::test
