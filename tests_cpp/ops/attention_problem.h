// A case of dense attention with its arrays: NaN in every key and value past a sequence's length.
#pragma once

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "dlattn/dlattn.h"
#include "ops/attention_cases.h"
#include "support/reference.h"
#include "support/tensor.h"

namespace dlattn::test {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct DenseProblem {
  explicit DenseProblem(const AttentionCase& wanted)
      : c(wanted), random(static_cast<unsigned>(c.seqlen_q * 1000 + c.seqlen_k)) {
    q = heads(c.seqlen_q, c.num_heads, c.head_dim);
    k = heads(c.seqlen_k, c.num_kv_heads, c.head_dim);
    v = heads(c.seqlen_k, c.num_kv_heads, c.head_dim_v);
    const Storage of_out = c.out_storage.value_or(c.storage);
    out = Tensor(c.dtype, {c.batch_size, c.seqlen_q, c.num_heads, c.head_dim_v}, of_out);
    lse = Tensor(DType::kFloat32, {c.batch_size, c.num_heads, c.seqlen_q},
                 of_out == Storage::kPadded ? of_out : Storage::kContiguous);
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
    for (int64_t b = 0; b < c.batch_size; ++b) {
      const int64_t some = c.len_k.empty() ? (b * 41 + 13) % (c.seqlen_k + 1) : c.len_k[static_cast<size_t>(b)];
      length.push_back(c.lengths ? some : c.seqlen_k);
    }
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

  void run(const AttentionParams& p, Stream stream = nullptr) const {
    if (c.op == AttentionOp::kPrefill) return attn_prefill(p, stream);
    if (c.op == AttentionOp::kDecode) return attn_decode(p, stream);
    attention(p, stream);
  }

  size_t workspace_size(const AttentionParams& p) const { return attn_workspace_size(p, c.op); }
  Explanation explained(const AttentionParams& p) const { return explain(p, c.op); }

  // All arrays that params() points to, those that are written, and the latter as they were.
  std::vector<Tensor*> tensors() { return {&q, &k, &v, &out, &lse, &mask, &sinks, &alibi, &lengths}; }
  std::vector<Tensor*> outputs() { return {&out, &lse}; }
  void restore() { out.restore(clean_out), lse.restore(clean_lse); }

  AttentionCase c;
  std::mt19937 random;
  std::vector<int64_t> length;
  Tensor q, k, v, out, lse, mask, sinks, alibi, lengths;
  std::vector<unsigned char> clean_out, clean_lse;
};

}  // namespace dlattn::test
