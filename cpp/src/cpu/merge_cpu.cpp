// Combine partial results over disjoint keys.
#include <cmath>
#include <limits>

#include "backend.h"
#include "cpu/isa.h"
#include "cpu/thread_pool.h"
#include "element.h"

namespace dlattn::cpu {
namespace {

void merge_row(const MergeParams& p, int64_t batch, int64_t head, int64_t query) {
  const DTypeKernels& kernel = kernels_for(p.dtype);
  const auto lse_of = [&](const AttentionState& s) {
    return s.lse[batch * s.lse_stride_batch + head * s.lse_stride_head + query * s.lse_stride_seq];
  };
  float largest = -std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < p.num_states; ++i) largest = std::fmax(largest, lse_of(p.states[i]));
  double sum = 0.0;
  float acc[256] = {}, part[256];
  for (int64_t i = 0; i < p.num_states; ++i) {
    const AttentionState& s = p.states[i];
    const float lse = lse_of(s);
    if (lse == -std::numeric_limits<float>::infinity()) continue;  // empty, whatever its out holds
    const double weight = lse == largest ? 1.0 : std::exp(static_cast<double>(lse) - largest);
    sum += weight;
    const int64_t start = batch * s.out_stride_batch + query * s.out_stride_seq + head * s.out_stride_head;
    kernel.load(offset(s.out, start, p.dtype), part, p.head_dim_v);
    for (int64_t d = 0; d < p.head_dim_v; ++d) acc[d] += static_cast<float>(weight) * part[d];
  }
  const float scale = sum == 0.0 ? 0.0f : static_cast<float>(1.0 / sum);
  for (int64_t d = 0; d < p.head_dim_v; ++d) acc[d] *= scale;
  const int64_t start = batch * p.out_stride_batch + query * p.out_stride_seq + head * p.out_stride_head;
  kernel.store(acc, offset(p.out, start, p.dtype), p.head_dim_v);
  if (p.lse != nullptr) {
    p.lse[batch * p.lse_stride_batch + head * p.lse_stride_head + query * p.lse_stride_seq] =
        static_cast<float>(largest + std::log(sum));
  }
}

}  // namespace

void merge(const MergeParams& p) {
  const int64_t work = p.batch_size * p.seqlen_q * p.num_heads * p.head_dim_v * p.num_states;
  parallel_for(p.batch_size * p.num_heads, work > (1 << 16), [&](int64_t i) {
    for (int64_t query = 0; query < p.seqlen_q; ++query) merge_row(p, i / p.num_heads, i % p.num_heads, query);
  });
}

}  // namespace dlattn::cpu
