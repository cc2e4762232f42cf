// Dense attention cases: a shape, a dtype and the options, which print themselves.
#pragma once

#include <optional>
#include <ostream>
#include <vector>

#include "dlattn/attention.h"
#include "dlattn/tensor_view.h"
#include "support/tensor.h"

namespace dlattn::test {

enum class MaskKind { kNone, kBool2D, kBool3D, kBool4D, kFloat4D, kHalf3D };

struct AttentionCase {
  DType dtype = DType::kFloat32;
  int64_t batch_size = 2, seqlen_q = 7, seqlen_k = 33, num_heads = 4, num_kv_heads = 2, head_dim = 32, head_dim_v = 32;
  bool is_causal = false;
  int64_t window_left = -1, window_right = -1;
  float softcap = 0.0f;
  std::optional<float> scale = std::nullopt;
  bool sinks = false, lengths = false;
  std::vector<int64_t> len_k = {};  // the lengths; empty: some
  int alibi_axes = 0;
  MaskKind mask = MaskKind::kNone;
  Storage storage = Storage::kContiguous;
  std::optional<Storage> out_storage = std::nullopt;  // of out; none: the same
  Layout layout = Layout::kBLHD;
  AttentionOp op = AttentionOp::kAuto;
};

inline std::ostream& operator<<(std::ostream& os, const AttentionCase& c) {
  const char* masks[] = {"none", "bool2d", "bool3d", "bool4d", "float4d", "half3d"};
  const char* ops[] = {"auto", "prefill", "decode"};
  os << dtype_name(c.dtype) << " batch " << c.batch_size << " q " << c.seqlen_q << " k " << c.seqlen_k << " heads "
     << c.num_heads << "/" << c.num_kv_heads << " dim " << c.head_dim << "/" << c.head_dim_v << " op "
     << ops[static_cast<int>(c.op)] << " " << storage_name(c.storage) << (c.layout == Layout::kBLHD ? " blhd" : " bhld")
     << " mask " << masks[static_cast<int>(c.mask)];
  if (c.out_storage) os << " out " << storage_name(*c.out_storage);
  if (c.is_causal) os << " causal";
  if (c.window_left >= 0 || c.window_right >= 0) os << " window " << c.window_left << "," << c.window_right;
  if (c.softcap > 0) os << " softcap " << c.softcap;
  if (c.scale) os << " scale " << *c.scale;
  if (c.sinks) os << " sinks";
  if (c.lengths) os << " lengths";
  for (int64_t n : c.len_k) os << " " << n;
  if (c.alibi_axes) os << " alibi" << c.alibi_axes << "d";
  return os;
}

inline const DType kFloatTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};

// Lengths around the block sizes of the kernels, 0 and 1 among them.
inline std::vector<AttentionCase> length_cases() {
  std::vector<AttentionCase> cases;
  const int64_t lengths[][2] = {{0, 5},   {5, 0},   {1, 1},   {1, 7},   {7, 1},    {1, 63},   {1, 64},    {1, 65},
                                {1, 300}, {2, 129}, {3, 128}, {8, 127}, {16, 33},  {17, 31},  {31, 32},   {32, 33},
                                {33, 64}, {63, 65}, {64, 64}, {65, 63}, {64, 129}, {65, 256}, {128, 257}, {129, 511}};
  for (DType dtype : kFloatTypes) {
    for (const auto& length : lengths) {
      for (bool causal : {false, true}) {
        AttentionCase c;
        c.dtype = dtype, c.seqlen_q = length[0], c.seqlen_k = length[1], c.is_causal = causal;
        cases.push_back(c);
      }
    }
  }
  return cases;
}

inline std::vector<AttentionCase> head_cases() {
  std::vector<AttentionCase> cases;
  for (int64_t ratio = 1; ratio <= 16; ++ratio) {
    for (int64_t seqlen_q : {1, 19}) {
      AttentionCase c;
      c.dtype = kFloatTypes[ratio % 3];
      c.seqlen_q = seqlen_q, c.seqlen_k = 70, c.num_heads = 2 * ratio, c.num_kv_heads = 2, c.is_causal = true;
      cases.push_back(c);
    }
  }
  const int64_t dims[][2] = {{1, 1},   {2, 5},    {7, 8},     {8, 7},     {15, 17},   {33, 64},   {64, 33},
                             {80, 80}, {96, 128}, {100, 112}, {128, 128}, {192, 128}, {255, 255}, {256, 256}};
  for (DType dtype : kFloatTypes) {
    for (const auto& dim : dims) {
      for (int64_t seqlen_q : {1, 18}) {
        AttentionCase c;
        c.dtype = dtype, c.seqlen_q = seqlen_q, c.seqlen_k = 37, c.head_dim = dim[0], c.head_dim_v = dim[1];
        cases.push_back(c);
      }
    }
  }
  return cases;
}

// Each option alone and all together, for decode and prefill.
inline std::vector<AttentionCase> option_cases() {
  std::vector<AttentionCase> cases;
  for (AttentionOp op : {AttentionOp::kDecode, AttentionOp::kPrefill}) {
    for (int64_t seqlen_q : {1, 5, 70}) {
      AttentionCase base;
      base.op = op, base.seqlen_q = seqlen_q, base.seqlen_k = 150;
      base.dtype = kFloatTypes[cases.size() % 3];
      std::vector<AttentionCase> some(17, base);
      some[0].window_left = 20;
      some[1].window_left = 0, some[1].window_right = 0;
      some[2].window_right = 3;
      some[3].window_left = 33, some[3].window_right = 64, some[3].lengths = true;
      some[4].softcap = 0.7f;
      some[5].scale = 0.31f;
      some[6].scale = -1.5f;
      some[7].sinks = true;
      some[8].lengths = true, some[8].is_causal = true;
      some[9].alibi_axes = 1;
      some[10].alibi_axes = 2, some[10].is_causal = true, some[10].lengths = true;
      some[11].mask = MaskKind::kBool2D;
      some[12].mask = MaskKind::kBool3D, some[12].is_causal = true;
      some[13].mask = MaskKind::kBool4D, some[13].sinks = true;
      some[14].mask = MaskKind::kFloat4D, some[14].lengths = true;
      some[15].mask = MaskKind::kHalf3D;
      some[16].mask = MaskKind::kFloat4D, some[16].is_causal = true, some[16].lengths = true;
      some[16].sinks = true, some[16].alibi_axes = 2, some[16].softcap = 5.0f, some[16].window_left = 60;
      cases.insert(cases.end(), some.begin(), some.end());
    }
  }
  return cases;
}

inline std::vector<AttentionCase> layout_cases() {
  std::vector<AttentionCase> cases;
  for (DType dtype : kFloatTypes) {
    for (Storage storage : {Storage::kContiguous, Storage::kSwapped, Storage::kPadded}) {
      for (Layout layout : {Layout::kBLHD, Layout::kBHLD}) {
        for (int64_t seqlen_q : {1, 34}) {
          AttentionCase c;
          c.dtype = dtype, c.storage = storage, c.layout = layout, c.seqlen_q = seqlen_q, c.seqlen_k = 66;
          c.head_dim_v = 24, c.is_causal = true, c.lengths = true;
          cases.push_back(c);
        }
      }
    }
  }
  return cases;
}

}  // namespace dlattn::test
