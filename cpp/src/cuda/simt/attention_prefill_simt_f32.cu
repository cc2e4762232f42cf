#include "cuda/simt/launch_prefill_simt.cuh"

namespace dlattn::cuda {

template void launch_prefill_simt<PrefillSimtHd64<true>>(const AttentionProblem&, const KernelRow&,
                                                         const LaunchContext&);
template void launch_prefill_simt<PrefillSimtHd64Small<true>>(const AttentionProblem&, const KernelRow&,
                                                              const LaunchContext&);
template void launch_prefill_simt<PrefillSimtHd128<true>>(const AttentionProblem&, const KernelRow&,
                                                          const LaunchContext&);
template void launch_prefill_simt<PrefillSimtHd128Small<true>>(const AttentionProblem&, const KernelRow&,
                                                               const LaunchContext&);
template void launch_prefill_simt<PrefillSimtHd256<true>>(const AttentionProblem&, const KernelRow&,
                                                          const LaunchContext&);
template void launch_prefill_simt<PrefillSimtHd256Small<true>>(const AttentionProblem&, const KernelRow&,
                                                               const LaunchContext&);

}  // namespace dlattn::cuda
