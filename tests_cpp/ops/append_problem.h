// A case of append_kv or rotary_append_kv with its arrays. The caches start as NaN.
#pragma once

#include <algorithm>
#include <numeric>
#include <ostream>
#include <random>
#include <vector>

#include "dlattn/dlattn.h"
#include "support/compare.h"
#include "support/tensor.h"

namespace dlattn::test {

struct AppendCase {
  DType dtype = DType::kFloat32;
  int64_t page_size = 16;
  Layout layout = Layout::kBLHD;
  Storage storage = Storage::kContiguous;
  DType index = DType::kInt32;
  bool rotary = false;                       // rotary_append_kv
  bool interleaved = false, keep_k = false;  // of rotary_append_kv; keep_k: it writes k_out as well
  int64_t batch_size = 2, seqlen = 5, num_heads = 6, num_kv_heads = 3, head_dim = 20, head_dim_v = 12, rotary_dim = 12;
};

inline std::ostream& operator<<(std::ostream& os, const AppendCase& c) {
  os << dtype_name(c.dtype) << " page " << c.page_size << (c.layout == Layout::kBLHD ? " blhd " : " bhld ")
     << storage_name(c.storage) << " " << dtype_name(c.index) << " batch " << c.batch_size << " len " << c.seqlen
     << " heads " << c.num_heads << "/" << c.num_kv_heads << " dim " << c.head_dim << "/" << c.head_dim_v;
  if (c.rotary) os << " rotary " << c.rotary_dim;
  return os << (c.interleaved ? " interleaved" : "") << (c.keep_k ? " keep k" : "");
}

struct AppendProblem {
  static constexpr int64_t kMaxPosition = 30;

  explicit AppendProblem(const AppendCase& wanted) : c(wanted), random(5) {
    const int64_t tokens = c.batch_size * c.seqlen;
    num_pages = 4 * tokens / c.page_size + 1;
    const auto heads = [&](int64_t count, int64_t dim) {
      return Tensor(c.dtype, {c.batch_size, c.seqlen, count, dim}, c.storage);
    };
    q = heads(c.num_heads, c.head_dim), q_out = q;
    k = heads(c.num_kv_heads, c.head_dim), k_out = k;
    v = heads(c.num_kv_heads, c.head_dim_v);
    for (Tensor* t : {&q, &k, &v}) t->fill_random(random);
    k_cache = Tensor(c.dtype, {num_pages, c.page_size, c.num_kv_heads, c.head_dim}, c.storage);
    v_cache = Tensor(c.dtype, {num_pages, c.page_size, c.num_kv_heads, c.head_dim_v}, c.storage);
    cos = Tensor(DType::kFloat32, {kMaxPosition, c.rotary_dim / 2}), sin = cos;
    cos.fill_random(random), sin.fill_random(random);
    positions = Tensor(c.index, {c.batch_size, c.seqlen});
    positions.each([&](unsigned char* at) { store(c.index, static_cast<double>(random() % kMaxPosition), at); });
    slots.resize(static_cast<size_t>(num_pages * c.page_size));
    std::iota(slots.begin(), slots.end(), 0);
    std::shuffle(slots.begin(), slots.end(), random);
    slots.resize(static_cast<size_t>(tokens));
    for (size_t t = 2; t < slots.size(); t += 4) slots[t] = -1;
    slot_mapping = index_tensor(c.index, slots);
    for (Tensor* t : outputs()) clean.push_back(t->bytes());
  }

  AppendTensors append_tensors() {
    AppendTensors t;
    t.layout = c.layout;
    t.k = k.view(axes()), t.v = v.view(axes()), t.k_cache = k_cache.view(axes()), t.v_cache = v_cache.view(axes());
    t.slot_mapping = slot_mapping.view();
    return t;
  }

  RotaryTensors rotary_tensors() {
    RotaryTensors t;
    t.layout = c.layout;
    t.q = q.view(axes()), t.k = k.view(axes()), t.q_out = q_out.view(axes());
    if (c.keep_k) t.k_out = k_out.view(axes());
    t.cos = cos.view(), t.sin = sin.view(), t.positions = positions.view();
    return t;
  }

  // For append_kv, only `append` is filled.
  RotaryAppendKVParams params() {
    RotaryAppendKVParams p;
    if (c.rotary) {
      p = make_rotary_append_params("rotary_append_kv", rotary_tensors(), append_tensors());
      p.rotary.interleaved = c.interleaved;
    } else {
      p.append = make_append_params("append_kv", append_tensors());
    }
    return p;
  }

  void run(const RotaryAppendKVParams& p, Stream stream = nullptr) const {
    c.rotary ? rotary_append_kv(p, stream) : append_kv(p.append, stream);
  }

  // All arrays that params() points to, those that are written, and the latter as they were.
  std::vector<Tensor*> tensors() {
    return {&q, &k, &v, &q_out, &k_out, &k_cache, &v_cache, &cos, &sin, &positions, &slot_mapping};
  }
  std::vector<Tensor*> outputs() { return {&k_cache, &v_cache, &q_out, &k_out}; }
  void restore() {
    for (size_t i = 0; i < clean.size(); ++i) outputs()[i]->restore(clean[i]);
  }

  void expect_definition() {
    const int64_t len = c.seqlen;
    expect_cache(k_cache, c.head_dim, c.rotary ? rounding_bound(c.dtype) : Bound{0, 0},
                 [&](int64_t t, int64_t h, int64_t d) {
                   return c.rotary ? rotated(k, t / len, t % len, h, d) : k.at(t / len, t % len, h, d);
                 });
    expect_cache(v_cache, c.head_dim_v, {0, 0},
                 [&](int64_t t, int64_t h, int64_t d) { return v.at(t / len, t % len, h, d); });
    expect_rotated(q, q_out, c.num_heads, c.rotary);
    expect_rotated(k, k_out, c.num_kv_heads, c.rotary && c.keep_k);
    k_cache.expect_gaps_untouched("k_cache");
    v_cache.expect_gaps_untouched("v_cache");
    q_out.expect_gaps_untouched("q_out");
    k_out.expect_gaps_untouched("k_out");
  }

  AppendCase c;
  std::mt19937 random;
  int64_t num_pages = 0;
  std::vector<int64_t> slots;
  Tensor q, k, v, q_out, k_out, k_cache, v_cache, cos, sin, positions, slot_mapping;
  std::vector<std::vector<unsigned char>> clean;

 private:
  std::vector<int> axes() const {
    return c.layout == Layout::kBLHD ? std::vector<int>{} : std::vector<int>{0, 2, 1, 3};
  }

  double rotated(const Tensor& x, int64_t b, int64_t i, int64_t h, int64_t d) const {
    if (d >= c.rotary_dim) return x.at(b, i, h, d);
    const int64_t half = c.rotary_dim / 2;
    const int64_t pair = c.interleaved ? d / 2 : d % half;
    const bool first = c.interleaved ? d % 2 == 0 : d < half;
    const int64_t other = c.interleaved ? d ^ 1 : first ? d + half : d - half;
    const auto position = static_cast<int64_t>(positions.at(b, i));
    const double co = cos.at(position, pair), si = sin.at(position, pair);
    return x.at(b, i, h, d) * co + (first ? -1.0 : 1.0) * x.at(b, i, h, other) * si;
  }

  // `out` holds the rotated x if it was written, else NaN.
  void expect_rotated(const Tensor& x, const Tensor& out, int64_t heads, bool written) const {
    for (int64_t b = 0; b < c.batch_size; ++b) {
      for (int64_t i = 0; i < c.seqlen; ++i) {
        for (int64_t h = 0; h < heads; ++h) {
          for (int64_t d = 0; d < c.head_dim; ++d) {
            ASSERT_TRUE(near(out.at(b, i, h, d), written ? rotated(x, b, i, h, d) : NAN, rounding_bound(c.dtype)))
                << b << "," << i << "," << h << "," << d;
          }
        }
      }
    }
  }

  // The cache holds `expected(token, head, d)` in the slots that were named, NaN elsewhere.
  template <typename F>
  void expect_cache(const Tensor& cache, int64_t dim, Bound bound, F&& expected) const {
    std::vector<int64_t> token(static_cast<size_t>(num_pages * c.page_size), -1);
    for (size_t t = 0; t < slots.size(); ++t) {
      if (slots[t] >= 0) token[static_cast<size_t>(slots[t])] = static_cast<int64_t>(t);
    }
    for (int64_t slot = 0; slot < num_pages * c.page_size; ++slot) {
      const int64_t t = token[static_cast<size_t>(slot)];
      for (int64_t h = 0; h < c.num_kv_heads; ++h) {
        for (int64_t d = 0; d < dim; ++d) {
          const double want = t < 0 ? NAN : expected(t, h, d);
          ASSERT_TRUE(near(cache.at(slot / c.page_size, slot % c.page_size, h, d), want, bound))
              << "slot " << slot << " head " << h << " dim " << d;
        }
      }
    }
  }
};

// `base` as append_kv, and as rotary_append_kv in its four forms.
inline std::vector<AppendCase> forms_of(const AppendCase& base) {
  std::vector<AppendCase> cases{base};
  for (bool interleaved : {false, true}) {
    for (bool keep_k : {false, true}) {
      AppendCase c = base;
      c.rotary = true, c.interleaved = interleaved, c.keep_k = keep_k;
      cases.push_back(c);
    }
  }
  return cases;
}

inline std::vector<AppendCase> append_cases() {
  std::vector<AppendCase> cases;
  for (DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    for (const AppendCase& base : {AppendCase{dtype, 1, Layout::kBLHD, Storage::kContiguous, DType::kInt32},
                                   AppendCase{dtype, 3, Layout::kBHLD, Storage::kContiguous, DType::kInt64},
                                   AppendCase{dtype, 16, Layout::kBLHD, Storage::kPadded, DType::kInt64},
                                   AppendCase{dtype, 64, Layout::kBHLD, Storage::kSwapped, DType::kInt32},
                                   AppendCase{dtype, 16, Layout::kBLHD, Storage::kShifted, DType::kInt32}}) {
      for (const AppendCase& c : forms_of(base)) cases.push_back(c);
    }
  }
  return cases;
}

}  // namespace dlattn::test
