// rotary_embedding against the definition in double.
#include <cmath>
#include <random>

#include "dlattn/dlattn.h"
#include "support/compare.h"
#include "support/cpu_test.h"
#include "support/tensor.h"

namespace dlattn::test {
namespace {

struct RotaryCase {
  DType dtype = DType::kFloat32, table_dtype = DType::kFloat32;
  int64_t batch_size = 2, seqlen = 9, num_heads = 4, num_kv_heads = 2, head_dim = 32, rotary_dim = 32;
  bool interleaved = false, gathered = false, in_place = false, positions = false;
  Storage storage = Storage::kContiguous;
  DType index = DType::kInt32;
};

std::ostream& operator<<(std::ostream& os, const RotaryCase& c) {
  return os << dtype_name(c.dtype) << " table " << dtype_name(c.table_dtype) << " batch " << c.batch_size << " len "
            << c.seqlen << " heads " << c.num_heads << "/" << c.num_kv_heads << " dim " << c.head_dim << " rotary "
            << c.rotary_dim << (c.interleaved ? " interleaved" : "") << (c.gathered ? " gathered" : "")
            << (c.in_place ? " in place" : "") << (c.positions ? " positions " : " ") << dtype_name(c.index);
}

using RotaryTest = CpuTestWithParam<RotaryCase>;

TEST_P(RotaryTest, MatchesTheDefinition) {
  const RotaryCase& c = GetParam();
  constexpr int64_t kMaxPosition = 50;
  std::mt19937 random(3);
  const int64_t half = c.rotary_dim / 2;
  Tensor q(c.dtype, {c.batch_size, c.seqlen, c.num_heads, c.head_dim}, c.storage);
  Tensor k(c.dtype, {c.batch_size, c.seqlen, c.num_kv_heads, c.head_dim}, c.storage);
  q.fill_random(random), k.fill_random(random);
  const Tensor q_in = q, k_in = k;
  Tensor q_out(c.dtype, {c.batch_size, c.seqlen, c.num_heads, c.head_dim}, c.storage);
  Tensor k_out(c.dtype, {c.batch_size, c.seqlen, c.num_kv_heads, c.head_dim}, c.storage);
  Tensor positions(c.index, {c.batch_size, c.seqlen});
  positions.each([&](unsigned char* at) { store(c.index, random() % kMaxPosition, at); });
  const std::vector<int64_t> shape =
      c.gathered ? std::vector<int64_t>{c.batch_size, c.seqlen, half} : std::vector<int64_t>{kMaxPosition, half};
  Tensor cos(c.table_dtype, shape), sin(c.table_dtype, shape);
  cos.fill_random(random, -1.0, 1.0), sin.fill_random(random, -1.0, 1.0);

  RotaryTensors t;
  t.q = q.view(), t.k = k.view(), t.cos = cos.view(), t.sin = sin.view();
  t.q_out = c.in_place ? q.view() : q_out.view();
  t.k_out = c.in_place ? k.view() : k_out.view();
  if (c.positions) t.positions = positions.view();
  RotaryParams p = make_rotary_params("rotary_embedding", t);
  p.interleaved = c.interleaved;
  Tensor& q_result = c.in_place ? q : q_out;
  Tensor& k_result = c.in_place ? k : k_out;
  const std::vector<unsigned char> clean_q = q_result.bytes(), clean_k = k_result.bytes();
  expect_same_bits(
      [&] {
        q_result.restore(clean_q), k_result.restore(clean_k);
        rotary_embedding(p);
      },
      [&] {
        std::vector<unsigned char> bytes = q_result.bytes();
        bytes.insert(bytes.end(), k_result.bytes().begin(), k_result.bytes().end());
        return bytes;
      });

  const auto angle = [&](const Tensor& table, int64_t b, int64_t i, int64_t n) {
    if (c.gathered) return table.at(b, i, n);
    return table.at(c.positions ? static_cast<int64_t>(positions.at(b, i)) : i, n);
  };
  const auto expect_rotated = [&](const Tensor& in, const Tensor& out, int64_t heads) {
    for (int64_t b = 0; b < c.batch_size; ++b) {
      for (int64_t i = 0; i < c.seqlen; ++i) {
        for (int64_t h = 0; h < heads; ++h) {
          for (int64_t n = 0; n < half; ++n) {
            const int64_t first = c.interleaved ? 2 * n : n, second = c.interleaved ? 2 * n + 1 : n + half;
            const double x = in.at(b, i, h, first), y = in.at(b, i, h, second);
            const double co = angle(cos, b, i, n), si = angle(sin, b, i, n);
            ASSERT_TRUE(near(out.at(b, i, h, first), x * co - y * si, rounding_bound(c.dtype)));
            ASSERT_TRUE(near(out.at(b, i, h, second), y * co + x * si, rounding_bound(c.dtype)));
          }
          for (int64_t d = c.rotary_dim; d < c.head_dim; ++d) ASSERT_EQ(out.at(b, i, h, d), in.at(b, i, h, d));
        }
      }
    }
  };
  expect_rotated(q_in, q_result, c.num_heads);
  expect_rotated(k_in, k_result, c.num_kv_heads);
  q_result.expect_gaps_untouched("q_out");
  k_result.expect_gaps_untouched("k_out");
  if (!c.in_place) {
    EXPECT_TRUE(q.bytes() == q_in.bytes()) << "q was written";
  }
}

std::vector<RotaryCase> rotary_cases() {
  std::vector<RotaryCase> cases;
  for (DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    for (bool interleaved : {false, true}) {
      RotaryCase base;
      base.dtype = dtype, base.interleaved = interleaved;
      const int64_t dims[][2] = {{32, 32}, {32, 16},  {33, 32},   {7, 6},  {2, 2},
                                 {64, 0},  {128, 96}, {256, 256}, {80, 20}};
      for (const auto& dim : dims) {
        RotaryCase c = base;
        c.head_dim = dim[0], c.rotary_dim = dim[1];
        c.positions = dim[0] % 2 == 0;
        cases.push_back(c);
      }
      std::vector<RotaryCase> some(9, base);
      some[0].gathered = true;
      some[1].in_place = true, some[1].rotary_dim = 20;
      some[2].storage = Storage::kSwapped, some[2].positions = true;
      some[3].storage = Storage::kPadded, some[3].in_place = true, some[3].index = DType::kInt64;
      some[3].positions = true;
      some[4].table_dtype = DType::kBFloat16;
      some[5].table_dtype = DType::kFloat16, some[5].gathered = true, some[5].storage = Storage::kPadded;
      some[6].seqlen = 0;
      some[7].num_kv_heads = 0;
      some[8].batch_size = 1, some[8].seqlen = 1, some[8].num_heads = 1, some[8].num_kv_heads = 1;
      cases.insert(cases.end(), some.begin(), some.end());
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Pairs, RotaryTest, ::testing::ValuesIn(rotary_cases()));

}  // namespace
}  // namespace dlattn::test
