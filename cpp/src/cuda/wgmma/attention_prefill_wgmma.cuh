// attention_prefill_wgmma -- forward attention for Hopper: TMA copies, wgmma products, warp groups with roles
//   computes  out = softmax(scale q k^T + mask) v;  lse = natural log of the row sum (optional); or the partial sums of a part
//             of the keys (attn/partial.h)
//   work      one (part of the keys, row tile, head) item (work_list.h); a block stays on its SM and takes item after item
//   tile      kGroups x 64 rows x kTileKV keys; the products of 64 rows are a consumer warp group's
//   roles     producer warp group: warp 0 copies q, k and v (producer.cuh), a thread of warp 1 looks up items ahead of time;
//             consumer warp groups: scores, exponentials, products, results (consumer.cuh, epilogue.cuh)
//   smem      q, kStages tiles of k and of v, results of narrow heads: panels of 64 columns, swizzled as TMA and wgmma do
//             (storage.cuh)
//   sync      mbarriers: full (copies have arrived) and empty (no longer read) of each stage; the same for items. kTurns: named
//             barriers, so that warp groups ask for their products one after the other, not at the same time
//             The grid may begin while the one before it ends, and so may the one after it (ptx/grid_dependency.cuh)
//   overlap   the products of the tile before are computed during the exponentials; the next scores are asked for ahead of them
//   softmax   no row maximum: exponentials are relative to a reference of each row, 0 at first, which moves where a row's
//             exponentials are not near 1. If some were infinite, or all too small to be exact, the item comes
//             again, carefully: relative to the maximum of every tile, and what is subtracted is exact
//   assumes   what select.cpp asks of wgmma rows: strides of TMA, 16-byte rows, counts of 32 bits
//   sources   docs/kernels/prefill-wgmma.md
//   checked   tests_cpp/ops/test_attention_cuda.cpp, test_ragged_cuda.cpp; instructions: tests_cpp/unit/test_ptx_wgmma.cu
#pragma once

#include "cuda/ptx/grid_dependency.cuh"
#include "cuda/ptx/special.cuh"
#include "cuda/ptx/warp_group.cuh"
#include "cuda/wgmma/consumer.cuh"
#include "cuda/wgmma/epilogue.cuh"
#include "cuda/wgmma/producer.cuh"

namespace dlattn::cuda {
namespace prefill_wgmma {

template <typename T, class Config, bool kSoftcap, bool kTurns>
__global__ __launch_bounds__(Config::kThreads, Config::kBlocks) void attention_prefill_wgmma(
    const __grid_constant__ AttentionProblem problem, const __grid_constant__ WorkList list,
    const __grid_constant__ Partials partials, const __grid_constant__ KeyBoxes boxes,
    const __grid_constant__ TensorMaps maps) {
  extern __shared__ __align__(1024) unsigned char dynamic_smem[];
  auto& smem = *reinterpret_cast<SharedStorage<T, Config>*>(dynamic_smem);
  if (threadIdx.x == 0) {
    smem.init(list);
  } else if (threadIdx.x == 64) {
    ptx::tma_prefetch_map(&maps.q);
    ptx::tma_prefetch_map(&maps.k);
    ptx::tma_prefetch_map(&maps.v);
    ptx::tma_prefetch_map(&maps.out);
  }
  // What merges parts reads lengths ahead of its wait: those are there once this grid has waited.
  if (list.parts == 1) ptx::launch_dependents();
  __syncthreads();
  ptx::grid_dependency_wait();
  if (list.parts > 1) ptx::launch_dependents();
  const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 128, 0);
  if (group == 0) {
    ptx::setmaxnreg_dec<Config::kProducerRegs>();
    if (threadIdx.x == 32) {
      schedule<T, Config>(problem, list, smem);
    } else if (threadIdx.x < 32) {
      const Loader<T, Config> loader{problem, maps, boxes, smem, ptx::lane_id(), list.counter != nullptr};
      loader.run();
    }
  } else {
    ptx::setmaxnreg_inc<Config::kConsumerRegs>();
    Consumer<T, Config, kSoftcap, kTurns> consumer(problem, list, smem);
    consumer.run(maps, partials);
    if (threadIdx.x % 32 == 0) ptx::bulk_wait<0>();
  }
}

}  // namespace prefill_wgmma
}  // namespace dlattn::cuda
