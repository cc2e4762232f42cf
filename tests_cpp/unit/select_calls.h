// Calls and devices that kernels are chosen for.
#pragma once

#include <optional>
#include <vector>

#include "cuda/kernel_table.h"
#include "cuda/select.h"
#include "ops/attention_problem.h"

namespace dlattn::cuda {

inline DeviceCaps caps_of(int capability, int sms = 132, int shared_bytes = 227 * 1024) {
  return {capability / 10, capability % 10, sms, shared_bytes};
}

inline AttentionParams dense(DType dtype, int64_t batch, int64_t seqlen_q, int64_t seqlen_k, int64_t heads,
                             int64_t kv_heads, int64_t dim, int64_t dim_v) {
  AttentionParams p;
  p.device.type = DeviceType::kCUDA, p.dtype = dtype;
  p.batch_size = batch, p.seqlen_q = seqlen_q, p.seqlen_k = seqlen_k;
  p.num_heads = heads, p.num_kv_heads = kv_heads, p.head_dim = dim, p.head_dim_v = dim_v;
  return p;
}

// An H200's.
inline DeviceCaps h200() { return caps_of(90, 132, 227 * 1024); }

inline std::vector<KernelRow> rows_of(Family family) {
  std::vector<KernelRow> rows;
  for (const KernelRow& row : kernel_table()) {
    if (row.family == family) rows.push_back(row);
  }
  return rows;
}

// The row that the call gets; its name is empty if there is none.
inline KernelRow chosen(const AttentionProblem& problem, const DeviceCaps& caps,
                        std::optional<Family> forced = std::nullopt) {
  const int row = select_row(kernel_table(), problem, caps, forced);
  return row < 0 ? KernelRow() : kernel_table()[static_cast<size_t>(row)];
}

inline KernelRow chosen(const AttentionParams& params, const DeviceCaps& caps,
                        std::optional<Family> forced = std::nullopt) {
  return chosen(make_problem(params), caps, forced);
}

}  // namespace dlattn::cuda
