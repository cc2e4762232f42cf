// The attention kernels that were built: what each can do, and how it is launched.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>
#include <vector>

#include "cuda/archs.h"
#include "cuda/problem.h"

namespace dlattn::cuda {

enum class Family { kSimt, kMma, kWgmma };
enum class Phase { kPrefill, kDecode };  // many rows that share keys; few, split over the keys

const char* name_of(Family family);

// What a launch needs besides the problem.
struct LaunchContext {
  int device = 0;
  DeviceCaps caps;
  void* workspace = nullptr;
  cudaStream_t stream = nullptr;
};

struct KernelRow {
  const char* name = "";
  Family family = Family::kSimt;
  Phase phase = Phase::kPrefill;
  bool float32 = false, float16 = false, bfloat16 = false;  // dtypes
  bool aligned_only = false;  // rows of q, k and v on 16 bytes, head_dim and head_dim_v multiples of 16 bytes
  bool score_options = true;  // takes softcap, mask and ALiBi, and a scale that is not positive
  bool softcap = true;        // takes softcap, though it may not take the other options
  int max_head_dim = 0;       // head_dim and head_dim_v up to this
  int tile_rows = 1;          // rows of a kv head that a thread block serves; wgmma: of a query head
  int key_tile = 0;           // wgmma: keys that it loads at a time
  int shared_bytes = 0;       // dynamic, per thread block
  int blocks_per_sm = 1;      // that its registers and shared memory allow on a large SM
  double fma_rate = 1.0;      // of the SMs' float32 peak, measured: docs/kernels
  int bytes_in_flight = 0;    // that a thread block loads at a time; 0: does not limit it
  void (*launch)(const AttentionProblem& problem, const KernelRow& row, const LaunchContext& context) = nullptr;

  bool takes(DType dtype) const {
    return dtype == DType::kFloat32 ? float32 : dtype == DType::kFloat16 ? float16 : bfloat16;
  }
};

const std::vector<KernelRow>& kernel_table();

// Bytes of workspace of a row's launch.
size_t workspace_size(const KernelRow& row, const AttentionProblem& problem, const DeviceCaps& caps);

// For tests and benchmarks: a call forced onto a row. why_not: why the row cannot run it on its device; empty: it can.
std::string why_not(int row, const AttentionParams& params);
std::string why_not(int row, const VarlenAttentionParams& params);
std::string why_not(int row, const PagedAttentionParams& params);
size_t row_workspace_size(int row, const AttentionParams& params);
size_t row_workspace_size(int row, const VarlenAttentionParams& params);
size_t row_workspace_size(int row, const PagedAttentionParams& params);
void run_row(int row, const AttentionParams& params, cudaStream_t stream);
void run_row(int row, const VarlenAttentionParams& params, cudaStream_t stream);
void run_row(int row, const PagedAttentionParams& params, cudaStream_t stream);

}  // namespace dlattn::cuda
