// A case of merge_attention_states with its arrays. Some states of some rows are empty, with NaN in out; all states of one
// row are.
#pragma once

#include <cmath>
#include <ostream>
#include <random>
#include <vector>

#include "dlattn/dlattn.h"
#include "support/compare.h"
#include "support/tensor.h"

namespace dlattn::test {

struct MergeCase {
  DType dtype = DType::kFloat32;
  int num_states = 2;
  bool packed = false, in_place = false;
  Storage storage = Storage::kContiguous;
  int64_t batch_size = 2, seqlen_q = 3, num_heads = 4, head_dim_v = 20;
};

inline std::ostream& operator<<(std::ostream& os, const MergeCase& c) {
  return os << dtype_name(c.dtype) << " states " << c.num_states << (c.packed ? " packed" : "")
            << (c.in_place ? " in place" : "") << " " << storage_name(c.storage) << " batch " << c.batch_size << " q "
            << c.seqlen_q << " heads " << c.num_heads << " dim " << c.head_dim_v;
}

struct MergeProblem {
  explicit MergeProblem(const MergeCase& wanted) : c(wanted) {
    if (c.packed) c.batch_size = 1;
    std::mt19937 random(9);
    out = Tensor(c.dtype, {c.batch_size, c.seqlen_q, c.num_heads, c.head_dim_v}, c.storage);
    lse = Tensor(DType::kFloat32, {c.batch_size, c.num_heads, c.seqlen_q}, c.storage);
    for (int n = 0; n < c.num_states; ++n) {
      outs.push_back(out), lses.push_back(lse);
      outs.back().fill_random(random), lses.back().fill_random(random, -3.0, 3.0);
      for (int64_t b = 0; b < c.batch_size; ++b) {
        for (int64_t i = 0; i < c.seqlen_q; ++i) {
          for (int64_t h = 0; h < c.num_heads; ++h) {
            if ((b + i + h + n) % 3 != 0 && !(b == 1 && i == 2)) continue;
            lses.back().set(-INFINITY, b, h, i);
            for (int64_t d = 0; d < c.head_dim_v; ++d) outs.back().set(NAN, b, i, h, d);
          }
        }
      }
    }
    outs_in = outs, lses_in = lses;
    clean_out = result().bytes(), clean_lse = lse.bytes();
  }

  MergeParams params() {
    std::vector<StateTensors> inputs;
    for (size_t n = 0; n < outs.size(); ++n) inputs.push_back({shown(outs[n]), shown(lses[n])});
    states.resize(outs.size());
    return make_merge_params("merge_attention_states", inputs.data(), c.num_states, {shown(result()), shown(lse)},
                             Layout::kBLHD, states.data());
  }

  void run(const MergeParams& p, Stream stream = nullptr) const { merge_attention_states(p, stream); }

  // All arrays that params() points to, those that are written, and the latter as they were.
  std::vector<Tensor*> tensors() {
    std::vector<Tensor*> all{&out, &lse};
    for (Tensor& t : outs) all.push_back(&t);
    for (Tensor& t : lses) all.push_back(&t);
    return all;
  }
  std::vector<Tensor*> outputs() { return {&result(), &lse}; }
  void restore() { result().restore(clean_out), lse.restore(clean_lse); }

  Tensor& result() { return c.in_place ? outs.back() : out; }

  void expect_definition() {
    for (int64_t b = 0; b < c.batch_size; ++b) {
      for (int64_t i = 0; i < c.seqlen_q; ++i) {
        for (int64_t h = 0; h < c.num_heads; ++h) expect_row(b, i, h);
      }
    }
    result().expect_gaps_untouched("out");
    lse.expect_gaps_untouched("lse");
  }

  MergeCase c;
  std::vector<Tensor> outs, lses, outs_in, lses_in;
  Tensor out, lse;
  std::vector<AttentionState> states;
  std::vector<unsigned char> clean_out, clean_lse;

 private:
  TensorView shown(Tensor& tensor) const {  // packed: without the batch axis
    TensorView view = tensor.view();
    if (!c.packed) return view;
    for (int i = 1; i < view.ndim; ++i) view.shape[i - 1] = view.shape[i], view.strides[i - 1] = view.strides[i];
    --view.ndim;
    return view;
  }

  // On CUDA a launch merges 256 states; a later one the result so far, rounded to out's dtype, and 255 more.
  static bool ends_launch(size_t state) { return state > 0 && state % 255 == 0; }

  void expect_row(int64_t b, int64_t i, int64_t h) {
    double top = -INFINITY, sum = 0.0;
    for (const Tensor& t : lses_in) top = std::fmax(top, t.at(b, h, i));
    const auto dim = static_cast<size_t>(c.head_dim_v);
    std::vector<double> want(dim, 0.0), handed_on(dim, 0.0);  // handed_on: the sizes of what launches leave to the next
    for (size_t n = 0; n < outs_in.size() && top > -INFINITY; ++n) {
      const double weight = std::exp(lses_in[n].at(b, h, i) - top);
      sum += weight;
      for (size_t d = 0; d < dim && weight > 0.0; ++d) want[d] += weight * outs_in[n].at(b, i, h, d);
      if (n + 1 == outs_in.size() || !ends_launch(n) || sum == 0.0) continue;
      for (size_t d = 0; d < dim; ++d) handed_on[d] += std::fabs(want[d] / sum);
    }
    ASSERT_TRUE(near(lse.at(b, h, i), top > -INFINITY ? top + std::log(sum) : top, {2e-6, 1e-6}))
        << b << "," << i << "," << h;
    for (size_t d = 0; d < dim; ++d) {
      Bound bound = rounding_bound(c.dtype);
      bound.absolute += bound.relative * handed_on[d];  // weighed by at most 1 in the end
      ASSERT_TRUE(near(result().at(b, i, h, d), sum > 0.0 ? want[d] / sum : 0.0, bound))
          << b << "," << i << "," << h << "," << d;
    }
  }
};

inline std::vector<MergeCase> merge_cases() {
  std::vector<MergeCase> cases;
  for (DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    for (int states : {1, 2, 3, 9}) {
      cases.push_back({dtype, states, false, false, Storage::kContiguous});
      cases.push_back({dtype, states, true, false, Storage::kSwapped});
      cases.push_back({dtype, states, false, true, Storage::kPadded});
    }
  }
  return cases;
}

}  // namespace dlattn::test
