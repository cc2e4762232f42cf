// What the threads of rotary_any find to do: every element of q, k and v once, at its own address, with its own angle. The
// functions that the kernel calls, on the host.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "cuda/any/rotary_args.h"
#include "element.h"
#include "support/dtypes.h"

namespace dlattn::cuda {
namespace {

constexpr DType kFloatTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};
alignas(64) char some_memory[128];  // addresses only: nothing is read or written there

struct Strides {
  int64_t batch = 0, seq = 0, head = 0;
  int64_t at(int64_t b, int64_t s, int64_t h) const { return b * batch + s * seq + h * head; }
};

// What a rotary call is about; q, k and v are rows 0, 1 and 2.
struct Call {
  RotaryParams rotary;
  AppendKVParams append;
  RotaryPlan plan;
  int64_t item_bytes = 0;
  bool rotates = true;

  int64_t heads(int set) const { return set == 0 ? rotary.num_heads : rotary.num_kv_heads; }
  int64_t dim(int set) const { return set == 2 ? append.head_dim_v : rotary.head_dim; }
  int64_t rotary_dim(int set) const { return set == 2 || !rotates ? 0 : rotary.rotary_dim; }
  Strides source(int set) const {
    if (set == 0) return {rotary.q_stride_batch, rotary.q_stride_seq, rotary.q_stride_head};
    if (set == 1) return {rotary.k_stride_batch, rotary.k_stride_seq, rotary.k_stride_head};
    return {append.v_stride_batch, append.v_stride_seq, append.v_stride_head};
  }
  Strides output(int set) const {
    if (set == 0) return {rotary.q_out_stride_batch, rotary.q_out_stride_seq, rotary.q_out_stride_head};
    return {rotary.k_out_stride_batch, rotary.k_out_stride_seq, rotary.k_out_stride_head};
  }
};

// Looks at every thread of every launch of a call.
class Walk {
 public:
  explicit Walk(const Call& call) : call_(call), args_(call.plan.args) {
    for (int set = 0; set < kRotaryRowSets; ++set) {
      seen_[set].assign(static_cast<size_t>(tokens() * call.heads(set) * call.dim(set)), 0);
    }
  }

  // `chunks`: of one launch.
  void run(int64_t chunks) {
    if (args_.blocks_per_chunk == 0) return;
    for (; args_.first_chunk < args_.num_chunks; args_.first_chunk += chunks) {
      const int64_t here = std::min(chunks, args_.num_chunks - args_.first_chunk);
      for (int64_t block = 0; block < here * args_.blocks_per_chunk; ++block) {
        look_at_block(locate_block(args_, static_cast<uint32_t>(block)));
      }
    }
  }

  void expect_every_element_once() const {
    for (int set = 0; set < kRotaryRowSets; ++set) {
      const HeadRows& rows = args_.rows[set];
      const bool wanted = rows.dst != nullptr || rows.cache != nullptr;
      // In place what is not rotated stays as it is, unless a position outside the table makes it NaN.
      const bool copies = !rows.in_place || rows.cache != nullptr || args_.positions.data != nullptr;
      for (size_t i = 0; i < seen_[set].size(); ++i) {
        const bool has_work = copies || static_cast<int64_t>(i) % call_.dim(set) < call_.rotary_dim(set);
        ASSERT_EQ(seen_[set][i], wanted && has_work ? 1 : 0) << "rows " << set << ", element " << i;
      }
    }
  }

 private:
  int64_t tokens() const { return call_.rotary.batch_size * call_.rotary.seqlen; }

  void look_at_block(const RotaryBlock& block) {
    const int set = block.block < args_.rows[1].first_block ? 0 : block.block < args_.rows[2].first_block ? 1 : 2;
    const HeadRows& rows = args_.rows[set];
    ASSERT_GT(block.num_tokens, 0u);
    const int pairs = call_.plan.why_scalar == nullptr ? static_cast<int>(8 / call_.item_bytes) : 1;
    for (uint32_t thread = 0; thread < kRotaryThreads; ++thread) {
      const auto first = static_cast<uint32_t>(block.block - rows.first_block) * kRotaryThreads;
      const RotaryItem item = locate_item(rows, first + thread);
      if (item.token >= block.num_tokens) continue;
      const RotaryPiece piece = piece_at(rows, args_.split, pairs, item.piece);
      const int64_t seq = block.first_seq + item.token;
      for (int64_t head = item.head; head < std::min<int64_t>(item.head + kRotaryHeads, rows.num_heads); ++head) {
        look_at_piece(set, block.batch, seq, head, piece, pairs);
      }
      if (piece.rotated) look_at_angles(block.batch, seq, item.piece, piece, pairs);
    }
  }

  void look_at_piece(int set, int64_t batch, int64_t seq, int64_t head, const RotaryPiece& piece, int pairs) {
    const HeadRows& rows = args_.rows[set];
    const int64_t b = token(batch, seq).first, s = token(batch, seq).second;
    ASSERT_LT(b, call_.rotary.batch_size);
    ASSERT_LT(s, call_.rotary.seqlen);
    ASSERT_EQ(batch * rows.src_stride_batch + seq * rows.src_stride_seq + head * rows.src_stride_head,
              call_.source(set).at(b, s, head) * call_.item_bytes);
    if (rows.dst != nullptr) {
      ASSERT_EQ(batch * rows.dst_stride_batch + seq * rows.dst_stride_seq + head * rows.dst_stride_head,
                call_.output(set).at(b, s, head) * call_.item_bytes);
    }
    if (rows.cache != nullptr) {
      ASSERT_EQ(batch * args_.slot_mapping_stride_batch + seq * args_.slot_mapping_stride_seq,
                b * call_.append.slot_mapping_stride_batch + s * call_.append.slot_mapping_stride_seq);
    }
    ASSERT_TRUE(piece.whole || (pairs == 1 && !piece.rotated)) << "only the last of single elements has no partner";
    for (int i = 0; i < (piece.whole ? 2 : 1) * pairs; ++i) {
      const int64_t element = i < pairs ? piece.first + i : piece.first + piece.distance + i - pairs;
      ASSERT_EQ(piece.rotated, element < call_.rotary_dim(set));
      ASSERT_LT(element, call_.dim(set));
      ++seen_[set][static_cast<size_t>(((b * call_.rotary.seqlen + s) * call_.heads(set) + head) * call_.dim(set) +
                                       element)];
    }
  }

  // Each pair of the piece, as rotate() takes them, and the angle that is its own.
  void look_at_angles(int64_t batch, int64_t seq, int number, const RotaryPiece& piece, int pairs) {
    const RotaryParams& p = call_.rotary;
    const int64_t b = token(batch, seq).first, s = token(batch, seq).second, size = size_of(p.table_dtype);
    for (int i = 0; i < pairs; ++i) {
      const bool apart = args_.split || pairs == 1;
      const int64_t x = apart ? piece.first + i : piece.first + 2 * i;
      const int64_t y = apart ? piece.first + piece.distance + i : piece.first + 2 * i + 1;
      const int64_t pair = p.interleaved ? x / 2 : x;
      ASSERT_EQ(x, p.interleaved ? 2 * pair : pair);
      ASSERT_EQ(y, p.interleaved ? 2 * pair + 1 : pair + p.rotary_dim / 2);
      ASSERT_EQ(number * args_.table_piece_bytes + i * size, pair * size);
    }
    if (args_.positions.data != nullptr) {
      ASSERT_EQ(batch * args_.positions_stride_batch + seq * args_.positions_stride_seq,
                b * p.positions_stride_batch + s * p.positions_stride_seq);
      ASSERT_EQ(args_.cos_stride_seq, p.cos_stride_seq * size);
      ASSERT_EQ(args_.sin_stride_seq, p.sin_stride_seq * size);
    } else {
      const int64_t cos = p.gathered ? b * p.cos_stride_batch + s * p.cos_stride_seq : s * p.cos_stride_seq;
      const int64_t sin = p.gathered ? b * p.sin_stride_batch + s * p.sin_stride_seq : s * p.sin_stride_seq;
      ASSERT_EQ(batch * args_.cos_stride_batch + seq * args_.cos_stride_seq, cos * size);
      ASSERT_EQ(batch * args_.sin_stride_batch + seq * args_.sin_stride_seq, sin * size);
    }
  }

  // (sequence, token) of what the plan calls so: it walks over the batch if sequences have one token.
  std::pair<int64_t, int64_t> token(int64_t batch, int64_t seq) const {
    return call_.rotary.seqlen == 1 ? std::make_pair(seq, batch) : std::make_pair(batch, seq);
  }

  const Call& call_;
  RotaryArgs args_;
  std::vector<int> seen_[kRotaryRowSets];
};

class RotaryPlanTest : public ::testing::Test {
 protected:
  int64_t below(int64_t n) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(n)); }
  bool maybe() { return below(2) == 0; }

  // Heads before or after tokens, with or without a gap after a row.
  Strides strides(int64_t batch, int64_t seq, int64_t heads, int64_t dim, int64_t multiple) {
    const int64_t row = dim + multiple * below(3);
    Strides of;
    if (maybe()) {
      of.head = row, of.seq = heads * row;
    } else {
      of.seq = row, of.head = seq * row;
    }
    of.batch = seq * heads * row + multiple * below(2);
    if (batch == 1 && maybe()) of.batch = 12345;  // of an axis of size 1: counts for nothing
    return of;
  }

  // `aligned`: rows of 16 bytes. 0: rotary_embedding, 1: rotary_append_kv, 2: append_kv.
  Call random_call(bool aligned, int kind) {
    Call call;
    RotaryParams& p = call.rotary;
    AppendKVParams& a = call.append;
    p.dtype = a.dtype = kFloatTypes[below(3)];
    call.item_bytes = size_of(p.dtype);
    const int64_t multiple = aligned ? 16 / call.item_bytes : 1;
    const int64_t seqlens[] = {1, 2, 5, 16, 17, 33}, dims[] = {2, 7, 8, 33, 64, 80, 128, 256};
    const auto dim = [&] { return (dims[below(8)] + multiple - 1) / multiple * multiple; };
    p.batch_size = 1 + below(4), p.seqlen = seqlens[below(6)];
    if (p.seqlen == 1) p.batch_size = 1 + below(40);
    p.num_heads = below(8), p.num_kv_heads = below(5);
    p.head_dim = dim();
    p.rotary_dim = p.head_dim / 2 * 2;
    if (maybe()) p.rotary_dim = 2 * below(p.head_dim / 2 + 1);
    if (aligned) p.rotary_dim = p.rotary_dim / multiple * multiple;
    p.interleaved = maybe(), p.gathered = below(3) == 0;
    p.table_dtype = kFloatTypes[below(3)];
    p.max_position = 100;
    p.cos = p.sin = some_memory;
    p.cos_stride_seq = p.rotary_dim / 2, p.sin_stride_seq = p.rotary_dim / 2 + 8 * below(2);
    p.cos_stride_batch = p.cos_stride_seq * p.seqlen, p.sin_stride_batch = p.sin_stride_seq * p.seqlen;
    if (!p.gathered && maybe()) {
      p.positions.data = some_memory;
      p.positions_stride_batch = p.seqlen + below(2), p.positions_stride_seq = 1 + below(2);
    }
    char* memory = some_memory + (aligned || maybe() ? 0 : call.item_bytes);
    const auto random_strides = [&](int64_t heads, int64_t d) {
      return strides(p.batch_size, p.seqlen, heads, d, multiple);
    };
    const Strides q = random_strides(p.num_heads, p.head_dim), k = random_strides(p.num_kv_heads, p.head_dim);
    const bool in_place = maybe();
    const Strides q_out = in_place ? q : random_strides(p.num_heads, p.head_dim);
    const Strides k_out = in_place ? k : random_strides(p.num_kv_heads, p.head_dim);
    p.q = p.k = memory;
    p.q_out = p.k_out = in_place ? memory : memory + 64;
    p.q_stride_batch = q.batch, p.q_stride_seq = q.seq, p.q_stride_head = q.head;
    p.k_stride_batch = k.batch, p.k_stride_seq = k.seq, p.k_stride_head = k.head;
    p.q_out_stride_batch = q_out.batch, p.q_out_stride_seq = q_out.seq, p.q_out_stride_head = q_out.head;
    p.k_out_stride_batch = k_out.batch, p.k_out_stride_seq = k_out.seq, p.k_out_stride_head = k_out.head;
    if (kind == 0) {
      a.head_dim_v = p.head_dim;
      call.plan = plan_rotary(p);
      return call;
    }
    a.batch_size = p.batch_size, a.seqlen = p.seqlen, a.num_kv_heads = p.num_kv_heads;
    a.head_dim = p.head_dim, a.head_dim_v = dim();
    a.num_pages = 3, a.page_size = 16;
    const Strides v = random_strides(a.num_kv_heads, a.head_dim_v);
    a.k = a.v = memory, a.k_cache = a.v_cache = memory;
    a.k_stride_batch = k.batch, a.k_stride_seq = k.seq, a.k_stride_head = k.head;
    a.v_stride_batch = v.batch, a.v_stride_seq = v.seq, a.v_stride_head = v.head;
    a.k_cache_stride_head = a.head_dim, a.v_cache_stride_head = a.head_dim_v;
    a.k_cache_stride_seq = a.num_kv_heads * a.head_dim, a.v_cache_stride_seq = a.num_kv_heads * a.head_dim_v;
    a.k_cache_stride_page = a.page_size * a.k_cache_stride_seq, a.v_cache_stride_page = 16 * a.v_cache_stride_seq;
    a.slot_mapping.data = some_memory;
    a.slot_mapping_stride_batch = p.seqlen + below(2), a.slot_mapping_stride_seq = 1 + below(2);
    if (kind == 1) {
      if (maybe()) p.k_out = nullptr;
      call.plan = plan_rotary_append_kv({p, a});
    } else {
      call.rotates = false, p.num_heads = 0;
      call.plan = plan_append_kv(a);
    }
    return call;
  }

 private:
  std::mt19937 random_{4};
};

TEST_F(RotaryPlanTest, EveryElementIsOneThreads) {
  int vectors = 0, scalars = 0;
  for (int round = 0; round < 600; ++round) {
    const bool aligned = round % 2 == 0;
    const Call call = random_call(aligned, round % 3);
    const RotaryParams& p = call.rotary;
    SCOPED_TRACE(::testing::Message() << "round " << round << ": " << test::dtype_name(p.dtype) << " batch "
                                      << p.batch_size << " len " << p.seqlen << " heads " << p.num_heads << "/"
                                      << p.num_kv_heads << " dims " << p.head_dim << "," << p.rotary_dim << ","
                                      << call.append.head_dim_v << (p.interleaved ? " interleaved" : ""));
    ++(call.plan.why_scalar == nullptr ? vectors : scalars);
    if (aligned && call.plan.why_scalar != nullptr) {
      ASSERT_STREQ(call.plan.why_scalar, "rows of cos or sin are not aligned");
    }
    for (int64_t chunks : {INT64_C(1) << 20, INT64_C(3)}) {
      Walk walk(call);
      walk.run(chunks);
      walk.expect_every_element_once();
    }
    if (HasFailure()) return;
  }
  EXPECT_GT(vectors, 100);
  EXPECT_GT(scalars, 100);
}

TEST_F(RotaryPlanTest, NoTokensNoBlocks) {
  for (int kind : {0, 1, 2}) {
    Call call = random_call(true, kind);
    call.rotary.seqlen = call.append.seqlen = 0;
    const RotaryPlan plan = kind == 0   ? plan_rotary(call.rotary)
                            : kind == 1 ? plan_rotary_append_kv({call.rotary, call.append})
                                        : plan_append_kv(call.append);
    EXPECT_EQ(plan.args.blocks_per_chunk, 0);
  }
}

}  // namespace
}  // namespace dlattn::cuda
