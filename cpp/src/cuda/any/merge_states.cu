// Instances of merge_states_any, and its launches.
#include <algorithm>
#include <string>

#include "cuda/any/merge_states.cuh"
#include "cuda/launch.cuh"
#include "cuda/rows_aligned.h"
#include "dlattn/error.h"
#include "element.h"

namespace dlattn::cuda {
namespace {

template <int kMaxStates>
using Kernel = void (*)(MergeArgs<kMaxStates>);

template <bool kVector, int kMaxStates>
Kernel<kMaxStates> instance(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return merge_states_any<__half, kVector, kMaxStates>;
    case DType::kBFloat16:
      return merge_states_any<__nv_bfloat16, kVector, kMaxStates>;
    default:
      return merge_states_any<float, kVector, kMaxStates>;
  }
}

MergeShape shape_of(const MergeParams& p, bool vector) {
  MergeShape shape;
  shape.out = p.out, shape.lse = p.lse;
  shape.out_stride_batch = p.out_stride_batch, shape.out_stride_seq = p.out_stride_seq;
  shape.out_stride_head = p.out_stride_head;
  shape.lse_stride_batch = p.lse_stride_batch, shape.lse_stride_head = p.lse_stride_head;
  shape.lse_stride_seq = p.lse_stride_seq;
  shape.num_rows = p.batch_size * p.seqlen_q * p.num_heads;
  shape.num_heads = FastDiv(p.num_heads), shape.seqlen_q = FastDiv(p.seqlen_q);
  shape.head_dim_v = static_cast<int32_t>(p.head_dim_v);
  const int64_t pieces = vector ? p.head_dim_v * size_of(p.dtype) / kPieceBytes : p.head_dim_v;
  while (shape.log2_lanes < 5 && (INT64_C(1) << shape.log2_lanes) < pieces) ++shape.log2_lanes;
  return shape;
}

template <int kMaxStates>
void launch_rows(MergeArgs<kMaxStates>* args, Kernel<kMaxStates> kernel, cudaStream_t stream) {
  MergeShape& shape = args->shape;
  const int64_t rows_per_block = kMergeThreads >> shape.log2_lanes;
  constexpr int64_t kMaxBlocks = INT32_MAX;  // of a grid
  for (shape.first_row = 0; shape.first_row < shape.num_rows; shape.first_row += kMaxBlocks * rows_per_block) {
    const int64_t blocks = (shape.num_rows - shape.first_row + rows_per_block - 1) / rows_per_block;
    launch(kernel, "launch of merge_states_any", grid_of(blocks), kMergeThreads, 0, stream, *args);
  }
}

bool is_output(const AttentionState& state, const MergeParams& p) {
  return state.out == p.out || (p.lse != nullptr && state.lse == p.lse);
}

// What several launches cannot do.
void check_many(const MergeParams& p) {
  const auto in_place =
      std::count_if(p.states, p.states + p.num_states, [&](const AttentionState& s) { return is_output(s, p); });
  const std::string limit = std::to_string(kMaxMergeStates);
  if (p.lse == nullptr) {
    throw Unsupported("merge_attention_states: " + std::to_string(p.num_states) +
                      " states without lse, on CUDA at most " + limit + "; pass lse");
  }
  if (in_place > kMaxMergeStates) {
    throw Unsupported("merge_attention_states: " + std::to_string(in_place) +
                      " states are out or lse themselves, on CUDA at most " + limit);
  }
}

void launch_many(const MergeParams& p, bool vector, cudaStream_t stream) {
  check_many(p);
  const auto kernel = vector ? instance<true, kMaxMergeStates>(p.dtype) : instance<false, kMaxMergeStates>(p.dtype);
  MergeArgs<kMaxMergeStates> args;
  args.shape = shape_of(p, vector);
  // The result so far is a state of the next launch. States that are the outputs come first: the first launch
  // overwrites them.
  const AttentionState merged = {p.out,
                                 p.lse,
                                 p.out_stride_batch,
                                 p.out_stride_seq,
                                 p.out_stride_head,
                                 p.lse_stride_batch,
                                 p.lse_stride_head,
                                 p.lse_stride_seq};
  for (const bool outputs : {true, false}) {
    for (int64_t i = 0; i < p.num_states; ++i) {
      if (is_output(p.states[i], p) != outputs) continue;
      if (args.num_states == kMaxMergeStates) {
        launch_rows(&args, kernel, stream);
        args.states[0] = merged;
        args.num_states = 1;
      }
      args.states[args.num_states++] = p.states[i];
    }
  }
  launch_rows(&args, kernel, stream);
}

template <int kMaxStates>
void launch_at_once(const MergeParams& p, Kernel<kMaxStates> kernel, bool vector, cudaStream_t stream) {
  MergeArgs<kMaxStates> args;
  args.shape = shape_of(p, vector);
  args.num_states = static_cast<int32_t>(p.num_states);
  std::copy(p.states, p.states + p.num_states, args.states);
  launch_rows(&args, kernel, stream);
}

}  // namespace

const char* why_merge_scalar(const MergeParams& p) {
  if (p.head_dim_v * size_of(p.dtype) % kPieceBytes != 0) return "head_dim_v is not a multiple of 16 bytes";
  const auto aligned = [&](const void* out, int64_t stride_batch, int64_t stride_seq, int64_t stride_head) {
    return rows_aligned(out, kPieceBytes, size_of(p.dtype),
                        {{p.batch_size, stride_batch}, {p.seqlen_q, stride_seq}, {p.num_heads, stride_head}});
  };
  if (!aligned(p.out, p.out_stride_batch, p.out_stride_seq, p.out_stride_head)) {
    return "rows of out are not 16-byte aligned";
  }
  for (int64_t i = 0; i < p.num_states && p.states != nullptr; ++i) {
    const AttentionState& s = p.states[i];
    if (!aligned(s.out, s.out_stride_batch, s.out_stride_seq, s.out_stride_head)) {
      return "rows of a state's out are not 16-byte aligned";
    }
  }
  return nullptr;
}

void launch_merge(const MergeParams& p, cudaStream_t stream) {
  if (p.batch_size == 0 || p.seqlen_q == 0 || p.num_heads == 0) return;
  const bool vector = why_merge_scalar(p) == nullptr;
  if (p.num_states > kMaxMergeStates) {
    launch_many(p, vector, stream);
  } else if (!vector) {
    launch_at_once(p, instance<false, kMaxMergeStates>(p.dtype), vector, stream);
  } else if (p.num_states > kFewMergeStates) {
    launch_at_once(p, instance<true, kMaxMergeStates>(p.dtype), vector, stream);
  } else {
    launch_at_once(p, instance<true, kFewMergeStates>(p.dtype), vector, stream);
  }
}

}  // namespace dlattn::cuda
