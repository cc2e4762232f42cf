// Merging partial attention results on any GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/attn/fast_div.h"
#include "dlattn/params.h"

namespace dlattn::cuda {

// The states are parameters of the kernel, 64 bytes each, because a launch can neither allocate nor copy.
constexpr int kMergeThreads = 128;
constexpr int kFewMergeStates = 8;    // of the small kernel
constexpr int kMaxMergeStates = 256;  // of one launch: 16 KiB of parameters

struct MergeShape {
  void* out = nullptr;
  float* lse = nullptr;  // may be null
  int64_t out_stride_batch = 0, out_stride_seq = 0, out_stride_head = 0;
  int64_t lse_stride_batch = 0, lse_stride_head = 0, lse_stride_seq = 0;
  int64_t num_rows = 0, first_row = 0;  // batch * query * head, head fastest; of this launch: from first_row on
  FastDiv num_heads, seqlen_q;
  int32_t head_dim_v = 0;
  int32_t log2_lanes = 0;  // of a row
};

template <int kMaxStates>
struct MergeArgs {
  MergeShape shape;
  int32_t num_states = 0;
  AttentionState states[kMaxStates];
};

// Why rows cannot be read and written 16 bytes at a time; null: they can. Null pointers count as aligned.
const char* why_merge_scalar(const MergeParams& params);

// On the current device; nothing is launched if there is nothing to do. More than kMaxMergeStates states take several
// launches, which hand the result so far on through out and lse: it is rounded to the dtype of out in between, and +inf
// counts once however many states it stands for. Throws Unsupported if that needs an lse that is null or more than
// kMaxMergeStates states that are out or lse themselves; CudaError.
void launch_merge(const MergeParams& params, cudaStream_t stream);

}  // namespace dlattn::cuda
