// attention, attn_prefill and attn_decode against the definition in double.
#include <cmath>
#include <limits>
#include <random>

#include "dlattn/dlattn.h"
#include "ops/attention_cases.h"
#include "support/compare.h"
#include "support/cpu_test.h"
#include "support/reference.h"

namespace dlattn::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The arrays of one case, with NaN in every key and value past a sequence's length.
struct Problem {
  explicit Problem(const AttentionCase& wanted)
      : c(wanted), random(static_cast<unsigned>(c.seqlen_q * 1000 + c.seqlen_k)) {
    q = heads(c.seqlen_q, c.num_heads, c.head_dim);
    k = heads(c.seqlen_k, c.num_kv_heads, c.head_dim);
    v = heads(c.seqlen_k, c.num_kv_heads, c.head_dim_v);
    out = heads(c.seqlen_q, c.num_heads, c.head_dim_v);
    lse = Tensor(DType::kFloat32, {c.batch_size, c.num_heads, c.seqlen_q},
                 c.storage == Storage::kPadded ? c.storage : Storage::kContiguous);
    for (Tensor* t : {&q, &k, &v}) t->fill_random(random);
    make_lengths();
    make_mask();
    if (c.sinks) {
      sinks = Tensor(c.dtype, {c.num_heads});
      sinks.fill_random(random);
    }
    if (c.alibi_axes == 1) alibi = Tensor(DType::kFloat32, {c.num_heads});
    if (c.alibi_axes == 2) alibi = Tensor(DType::kFloat32, {c.batch_size, c.num_heads}, c.storage);
    if (c.alibi_axes) alibi.fill_random(random, 0.0, 0.2);
    clean_out = out.bytes(), clean_lse = lse.bytes();
  }

  Tensor heads(int64_t len, int64_t num_heads, int64_t dim) const {
    return Tensor(c.dtype, {c.batch_size, len, num_heads, dim}, c.storage);
  }

  void make_lengths() {
    for (int64_t b = 0; b < c.batch_size; ++b)
      length.push_back(c.lengths ? (b * 41 + 13) % (c.seqlen_k + 1) : c.seqlen_k);
    if (c.lengths) lengths = index_tensor(c.seqlen_q % 2 ? DType::kInt32 : DType::kInt64, length);
    for (int64_t b = 0; b < c.batch_size; ++b) {
      for (int64_t j = length[static_cast<size_t>(b)]; j < c.seqlen_k; ++j) {
        for (int64_t h = 0; h < c.num_kv_heads; ++h) {
          for (int64_t d = 0; d < c.head_dim; ++d) k.set(NAN, b, j, h, d);
          for (int64_t d = 0; d < c.head_dim_v; ++d) v.set(NAN, b, j, h, d);
        }
      }
    }
  }

  void make_mask() {
    const bool floating = c.mask == MaskKind::kFloat4D || c.mask == MaskKind::kHalf3D;
    const int64_t b = c.batch_size, h = c.num_heads, l = c.seqlen_q, n = c.seqlen_k;
    if (c.mask == MaskKind::kNone) return;
    if (c.mask == MaskKind::kBool2D) mask = Tensor(DType::kBool, {b, n});
    if (c.mask == MaskKind::kBool3D) mask = Tensor(DType::kBool, {1, l, n}, Storage::kSwapped);  // last stride not 1
    if (c.mask == MaskKind::kBool4D) mask = Tensor(DType::kBool, {b, h, l, n});
    if (c.mask == MaskKind::kFloat4D) mask = Tensor(DType::kFloat32, {b, 1, l, n}, Storage::kPadded);
    if (c.mask == MaskKind::kHalf3D) mask = Tensor(c.dtype, {b, l, n});
    if (floating) {
      mask.fill_random(random);
      mask.each([&](unsigned char* at) {
        if (random() % 4 == 0) store(mask.dtype(), -kInfinity, at);
      });
    } else {
      mask.each([&](unsigned char* at) { store(DType::kBool, random() % 3 != 0, at); });
    }
  }

  double bias(int64_t b, int64_t h, int64_t i, int64_t j) const {
    double x = 0.0;
    if (c.mask == MaskKind::kBool2D) x = mask.at(b, j);
    if (c.mask == MaskKind::kBool3D) x = mask.at(0, i, j);
    if (c.mask == MaskKind::kBool4D) x = mask.at(b, h, i, j);
    if (c.mask == MaskKind::kFloat4D) return mask.at(b, 0, i, j);
    if (c.mask == MaskKind::kHalf3D) return mask.at(b, i, j);
    return x != 0.0 ? 0.0 : -kInfinity;
  }

  Sequence sequence(int64_t b) {
    Sequence s;
    s.len_q = c.seqlen_q, s.len_k = length[static_cast<size_t>(b)];
    s.num_heads = c.num_heads, s.num_kv_heads = c.num_kv_heads, s.head_dim = c.head_dim, s.head_dim_v = c.head_dim_v;
    s.q = [this, b](int64_t i, int64_t h, int64_t d) { return q.at(b, i, h, d); };
    s.k = [this, b](int64_t j, int64_t h, int64_t d) { return k.at(b, j, h, d); };
    s.v = [this, b](int64_t j, int64_t h, int64_t d) { return v.at(b, j, h, d); };
    if (c.mask != MaskKind::kNone) s.bias = [this, b](int64_t h, int64_t i, int64_t j) { return bias(b, h, i, j); };
    if (c.sinks) s.sink = [this](int64_t h) { return sinks.at(h); };
    if (c.alibi_axes == 1) s.slope = [this](int64_t h) { return alibi.at(h); };
    if (c.alibi_axes == 2) s.slope = [this, b](int64_t h) { return alibi.at(b, h); };
    s.scale = c.scale ? *c.scale : 1.0 / std::sqrt(static_cast<double>(c.head_dim));
    s.softcap = c.softcap, s.is_causal = c.is_causal, s.window_left = c.window_left, s.window_right = c.window_right;
    return s;
  }

  AttentionParams params() {
    const std::vector<int> axes = c.layout == Layout::kBLHD ? std::vector<int>{} : std::vector<int>{0, 2, 1, 3};
    AttentionTensors t;
    t.layout = c.layout;
    t.q = q.view(axes), t.k = k.view(axes), t.v = v.view(axes), t.out = out.view(axes), t.lse = lse.view();
    if (c.mask != MaskKind::kNone) t.mask = mask.view();
    if (c.sinks) t.sinks = sinks.view();
    if (c.alibi_axes) t.alibi_slopes = alibi.view();
    if (c.lengths) t.seqlens_k = lengths.view();
    AttentionParams p = make_attention_params("attention", t);
    p.options.is_causal = c.is_causal;
    p.options.window_left = c.window_left, p.options.window_right = c.window_right;
    p.options.softcap = c.softcap;
    p.options.scale = c.scale;
    return p;
  }

  AttentionCase c;
  std::mt19937 random;
  std::vector<int64_t> length;
  Tensor q, k, v, out, lse, mask, sinks, alibi, lengths;
  std::vector<unsigned char> clean_out, clean_lse;
};

void run(const AttentionParams& p, AttentionOp op) {
  if (op == AttentionOp::kPrefill) return attn_prefill(p);
  if (op == AttentionOp::kDecode) return attn_decode(p);
  attention(p);
}

void expect_reference(Problem& problem) {
  const AttentionCase& c = problem.c;
  for (int64_t b = 0; b < c.batch_size; ++b) {
    const Sequence s = problem.sequence(b);
    const Reference reference(s);
    for (int64_t i = 0; i < c.seqlen_q; ++i) {
      for (int64_t h = 0; h < c.num_heads; ++h) {
        const Row row = reference.row(i, h);
        ASSERT_TRUE(near(problem.lse.at(b, h, i), row.lse, lse_bound(c.dtype))) << "lse " << b << "," << h << "," << i;
        for (int64_t d = 0; d < c.head_dim_v; ++d) {
          ASSERT_TRUE(near(problem.out.at(b, i, h, d), row.out[static_cast<size_t>(d)], out_bound(c.dtype)))
              << "out " << b << "," << i << "," << h << "," << d;
        }
      }
    }
  }
}

using AttentionTest = CpuTestWithParam<AttentionCase>;

TEST_P(AttentionTest, MatchesTheDefinition) {
  Problem problem(GetParam());
  const AttentionParams p = problem.params();
  expect_same_bits(
      [&] {
        problem.out.restore(problem.clean_out);  // NaN
        problem.lse.restore(problem.clean_lse);
        run(p, problem.c.op);
      },
      [&] {
        std::vector<unsigned char> bytes = problem.out.bytes();
        bytes.insert(bytes.end(), problem.lse.bytes().begin(), problem.lse.bytes().end());
        return bytes;
      });
  expect_reference(problem);
  problem.out.expect_gaps_untouched("out");
  problem.lse.expect_gaps_untouched("lse");
}

INSTANTIATE_TEST_SUITE_P(Lengths, AttentionTest, ::testing::ValuesIn(length_cases()));
INSTANTIATE_TEST_SUITE_P(Heads, AttentionTest, ::testing::ValuesIn(head_cases()));
INSTANTIATE_TEST_SUITE_P(Options, AttentionTest, ::testing::ValuesIn(option_cases()));
INSTANTIATE_TEST_SUITE_P(Layouts, AttentionTest, ::testing::ValuesIn(layout_cases()));

class AttentionRulesTest : public CpuTest {};

TEST_F(AttentionRulesTest, LseIsOptional) {
  AttentionCase c;
  Problem problem(c);
  AttentionParams p = problem.params();
  attention(p);
  const std::vector<unsigned char> with = problem.out.bytes();
  problem.out.restore(problem.clean_out);
  p.lse = nullptr;
  attention(p);
  EXPECT_TRUE(problem.out.bytes() == with);
}

TEST_F(AttentionRulesTest, VisibleNanPropagatesAndMaskedNanDoesNot) {
  for (int64_t seqlen_q : {1, 40}) {
    AttentionCase c;
    c.seqlen_q = seqlen_q, c.seqlen_k = 200, c.mask = MaskKind::kBool2D;
    Problem problem(c);
    problem.mask.fill(1.0);
    problem.mask.set(0.0, 0, 150);
    for (int64_t d = 0; d < c.head_dim; ++d) {
      problem.k.set(NAN, 0, 150, 0, d);  // hidden by the mask
      problem.v.set(NAN, 0, 150, 0, d);
      problem.k.set(NAN, 1, 120, 1, d);  // visible
    }
    attention(problem.params());
    for (int64_t i = 0; i < seqlen_q; ++i) {
      for (int64_t h = 0; h < c.num_heads; ++h) {
        EXPECT_FALSE(std::isnan(problem.out.at(0, i, h, 3))) << i << "," << h;
        EXPECT_EQ(std::isnan(problem.out.at(1, i, h, 3)), h >= 2) << i << "," << h;
        EXPECT_EQ(std::isnan(problem.lse.at(1, h, i)), h >= 2) << i << "," << h;
      }
    }
  }
}

TEST_F(AttentionRulesTest, BroadcastAndReversedInputs) {
  AttentionCase c;
  c.batch_size = 3, c.seqlen_q = 20, c.seqlen_k = 40;
  Problem problem(c);
  AttentionParams p = problem.params();
  p.k_stride_batch = 0;              // one sequence of keys for all
  p.v_stride_seq = -p.v_stride_seq;  // values from the last to the first
  p.v = static_cast<const float*>(p.v) - p.v_stride_seq * (c.seqlen_k - 1);
  attention(p);
  for (int64_t b = 0; b < c.batch_size; ++b) {
    Sequence s = problem.sequence(b);
    s.k = [&](int64_t j, int64_t h, int64_t d) { return problem.k.at(0, j, h, d); };
    s.v = [&](int64_t j, int64_t h, int64_t d) { return problem.v.at(b, c.seqlen_k - 1 - j, h, d); };
    const Row row = Reference(s).row(11, 2);
    for (int64_t d = 0; d < c.head_dim_v; ++d) {
      EXPECT_TRUE(near(problem.out.at(b, 11, 2, d), row.out[static_cast<size_t>(d)], out_bound(c.dtype)));
    }
  }
}

TEST_F(AttentionRulesTest, LargeScoresStayFinite) {
  AttentionCase c;
  c.seqlen_q = 33, c.seqlen_k = 65, c.scale = 3.0e4f;
  Problem problem(c);
  attention(problem.params());
  for (int64_t i = 0; i < c.seqlen_q; ++i) EXPECT_TRUE(std::isfinite(problem.out.at(0, i, 0, 0)));
}

TEST_F(AttentionRulesTest, ExplainNamesTheKernelWithoutData) {
  AttentionParams p;
  p.batch_size = 1, p.seqlen_q = 1, p.seqlen_k = 9, p.num_heads = p.num_kv_heads = 1, p.head_dim = p.head_dim_v = 8;
  const Explanation decode = explain(p);
  EXPECT_TRUE(decode.supported);
  EXPECT_EQ(decode.backend, "cpu");
  EXPECT_FALSE(decode.kernel.empty());
  EXPECT_EQ(decode.kernel, explain(p, AttentionOp::kDecode).kernel);
  EXPECT_EQ(attn_workspace_size(p), 0u);
  p.head_dim = 300;
  EXPECT_THROW(explain(p), InvalidArgument);
}

}  // namespace
}  // namespace dlattn::test
