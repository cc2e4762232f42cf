// A case of rotary_embedding with its arrays.
#pragma once

#include <ostream>
#include <random>
#include <vector>

#include "dlattn/dlattn.h"
#include "support/compare.h"
#include "support/tensor.h"

namespace dlattn::test {

struct RotaryCase {
  DType dtype = DType::kFloat32, table_dtype = DType::kFloat32;
  int64_t batch_size = 2, seqlen = 9, num_heads = 4, num_kv_heads = 2, head_dim = 32, rotary_dim = 32;
  bool interleaved = false, gathered = false, in_place = false, positions = false;
  Storage storage = Storage::kContiguous;
  DType index = DType::kInt32;
};

inline std::ostream& operator<<(std::ostream& os, const RotaryCase& c) {
  return os << dtype_name(c.dtype) << " table " << dtype_name(c.table_dtype) << " batch " << c.batch_size << " len "
            << c.seqlen << " heads " << c.num_heads << "/" << c.num_kv_heads << " dim " << c.head_dim << " rotary "
            << c.rotary_dim << (c.interleaved ? " interleaved" : "") << (c.gathered ? " gathered" : "")
            << (c.in_place ? " in place" : "") << (c.positions ? " positions " : " ") << dtype_name(c.index) << " "
            << storage_name(c.storage);
}

struct RotaryProblem {
  explicit RotaryProblem(const RotaryCase& wanted) : c(wanted), random(3) {
    const int64_t half = c.rotary_dim / 2;
    max_position = c.positions ? 50 : std::max<int64_t>(50, c.seqlen);
    q = Tensor(c.dtype, {c.batch_size, c.seqlen, c.num_heads, c.head_dim}, c.storage);
    k = Tensor(c.dtype, {c.batch_size, c.seqlen, c.num_kv_heads, c.head_dim}, c.storage);
    q_out = q, k_out = k;  // all NaN
    q.fill_random(random), k.fill_random(random);
    q_in = q, k_in = k;
    positions = Tensor(c.index, {c.batch_size, c.seqlen});
    positions.each([&](unsigned char* at) { store(c.index, static_cast<double>(random() % max_position), at); });
    const std::vector<int64_t> shape =
        c.gathered ? std::vector<int64_t>{c.batch_size, c.seqlen, half} : std::vector<int64_t>{max_position, half};
    cos = Tensor(c.table_dtype, shape), sin = Tensor(c.table_dtype, shape);
    cos.fill_random(random, -1.0, 1.0), sin.fill_random(random, -1.0, 1.0);
    clean_q = q_result().bytes(), clean_k = k_result().bytes();
  }

  RotaryParams params() {
    RotaryTensors t;
    t.q = q.view(), t.k = k.view(), t.cos = cos.view(), t.sin = sin.view();
    t.q_out = q_result().view();
    t.k_out = k_result().view();
    if (c.positions) t.positions = positions.view();
    RotaryParams p = make_rotary_params("rotary_embedding", t);
    p.interleaved = c.interleaved;
    return p;
  }

  void run(const RotaryParams& p, Stream stream = nullptr) const { rotary_embedding(p, stream); }

  // All arrays that params() points to, those that are written, and the latter as they were.
  std::vector<Tensor*> tensors() { return {&q, &k, &q_out, &k_out, &cos, &sin, &positions}; }
  std::vector<Tensor*> outputs() { return {&q_result(), &k_result()}; }
  void restore() { q_result().restore(clean_q), k_result().restore(clean_k); }

  Tensor& q_result() { return c.in_place ? q : q_out; }
  Tensor& k_result() { return c.in_place ? k : k_out; }

  void expect_definition() {
    expect_rotated(q_in, q_result(), c.num_heads);
    expect_rotated(k_in, k_result(), c.num_kv_heads);
    q_result().expect_gaps_untouched("q_out");
    k_result().expect_gaps_untouched("k_out");
    if (!c.in_place) {
      EXPECT_TRUE(q.bytes() == q_in.bytes()) << "q was written";
    }
  }

  RotaryCase c;
  std::mt19937 random;
  int64_t max_position;
  Tensor q, k, q_in, k_in, q_out, k_out, positions, cos, sin;
  std::vector<unsigned char> clean_q, clean_k;

 private:
  double angle(const Tensor& table, int64_t b, int64_t i, int64_t n) const {
    if (c.gathered) return table.at(b, i, n);
    return table.at(c.positions ? static_cast<int64_t>(positions.at(b, i)) : i, n);
  }

  void expect_rotated(const Tensor& in, const Tensor& out, int64_t heads) const {
    const int64_t half = c.rotary_dim / 2;
    for (int64_t b = 0; b < c.batch_size; ++b) {
      for (int64_t i = 0; i < c.seqlen; ++i) {
        for (int64_t h = 0; h < heads; ++h) {
          for (int64_t n = 0; n < half; ++n) {
            const int64_t first = c.interleaved ? 2 * n : n, second = c.interleaved ? 2 * n + 1 : n + half;
            const double x = in.at(b, i, h, first), y = in.at(b, i, h, second);
            const double co = angle(cos, b, i, n), si = angle(sin, b, i, n);
            ASSERT_TRUE(near(out.at(b, i, h, first), x * co - y * si, rounding_bound(c.dtype)))
                << b << "," << i << "," << h << "," << first;
            ASSERT_TRUE(near(out.at(b, i, h, second), y * co + x * si, rounding_bound(c.dtype)))
                << b << "," << i << "," << h << "," << second;
          }
          for (int64_t d = c.rotary_dim; d < c.head_dim; ++d) ASSERT_EQ(out.at(b, i, h, d), in.at(b, i, h, d));
        }
      }
    }
  }
};

inline std::vector<RotaryCase> rotary_cases() {
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
      std::vector<RotaryCase> some(11, base);
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
      some[9].storage = Storage::kShifted, some[9].head_dim = 64, some[9].rotary_dim = 64, some[9].positions = true;
      some[10].storage = Storage::kShifted, some[10].in_place = true, some[10].rotary_dim = 24;
      cases.insert(cases.end(), some.begin(), some.end());
    }
  }
  return cases;
}

}  // namespace dlattn::test
