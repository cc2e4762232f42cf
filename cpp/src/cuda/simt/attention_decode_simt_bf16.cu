#include "cuda/simt/launch_decode_simt.cuh"

namespace dlattn::cuda {

template void launch_decode_simt<DType::kBFloat16, 64, 1>(const AttentionProblem&, const KernelRow&,
                                                          const LaunchContext&);
template void launch_decode_simt<DType::kBFloat16, 64, 4>(const AttentionProblem&, const KernelRow&,
                                                          const LaunchContext&);
template void launch_decode_simt<DType::kBFloat16, 128, 1>(const AttentionProblem&, const KernelRow&,
                                                           const LaunchContext&);
template void launch_decode_simt<DType::kBFloat16, 128, 4>(const AttentionProblem&, const KernelRow&,
                                                           const LaunchContext&);
template void launch_decode_simt<DType::kBFloat16, 256, 1>(const AttentionProblem&, const KernelRow&,
                                                           const LaunchContext&);
template void launch_decode_simt<DType::kBFloat16, 256, 4>(const AttentionProblem&, const KernelRow&,
                                                           const LaunchContext&);

}  // namespace dlattn::cuda
