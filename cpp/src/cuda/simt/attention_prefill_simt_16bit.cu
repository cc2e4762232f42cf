#include "cuda/simt/launch_prefill_simt.cuh"

namespace dlattn::cuda {

template void launch_prefill_simt<PrefillSimtHd64<false>>(const AttentionProblem&, const KernelRow&,
                                                          const LaunchContext&);
template void launch_prefill_simt<PrefillSimtHd64Small<false>>(const AttentionProblem&, const KernelRow&,
                                                               const LaunchContext&);
template void launch_prefill_simt<PrefillSimtHd128<false>>(const AttentionProblem&, const KernelRow&,
                                                           const LaunchContext&);
template void launch_prefill_simt<PrefillSimtHd128Small<false>>(const AttentionProblem&, const KernelRow&,
                                                                const LaunchContext&);
template void launch_prefill_simt<PrefillSimtHd256<false>>(const AttentionProblem&, const KernelRow&,
                                                           const LaunchContext&);
template void launch_prefill_simt<PrefillSimtHd256Small<false>>(const AttentionProblem&, const KernelRow&,
                                                                const LaunchContext&);

}  // namespace dlattn::cuda
