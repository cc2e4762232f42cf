#include <cmath>
#include <cstdio>
#include <vector>

#include "dlattn/dlattn.h"

int main() {
  // One query of 8 heads against 100 keys of 2 heads; the layout is [batch, len, heads, dim].
  const int64_t heads = 8, kv_heads = 2, keys = 100, dim = 64;
  std::vector<float> q(heads * dim, 0.1f), k(keys * kv_heads * dim), v(k.size()), out(q.size());
  for (int64_t i = 0; i < keys; ++i) {
    for (int64_t j = 0; j < kv_heads * dim; ++j) {
      k[i * kv_heads * dim + j] = std::sin(0.01f * i);
      v[i * kv_heads * dim + j] = static_cast<float>(i);
    }
  }

  dlattn::AttentionParams p;
  p.batch_size = 1, p.seqlen_q = 1, p.seqlen_k = keys;
  p.num_heads = heads, p.num_kv_heads = kv_heads, p.head_dim = p.head_dim_v = dim;
  p.q = q.data(), p.k = k.data(), p.v = v.data(), p.out = out.data();
  p.q_stride_head = p.out_stride_head = p.k_stride_head = p.v_stride_head = dim;
  p.k_stride_seq = p.v_stride_seq = kv_heads * dim;
  p.options.is_causal = true;
  dlattn::attention(p);

  std::printf("dlattn %s, kernel %s, out[0] = %.4f\n", dlattn::version(), dlattn::explain(p).kernel.c_str(), out[0]);

  // The same in double.
  double sum = 0.0, mean = 0.0;
  for (int64_t i = 0; i < keys; ++i) {
    const double weight = std::exp(dim * 0.1 * std::sin(0.01 * static_cast<double>(i)) / std::sqrt(64.0));
    sum += weight;
    mean += weight * static_cast<double>(i);
  }
  return std::fabs(out[0] - mean / sum) < 1e-3 ? 0 : 1;
}
