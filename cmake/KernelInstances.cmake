# The instances of the mma kernels: one list for their sources and for the rows of the kernel table.

# dlattn_mma_instances(DIRECTORY ARCHS OUT_DEVICE OUT_HOST): writes a source for each instance and one that adds their rows to
# the kernel table. Without architectures the table gets none.
function(dlattn_mma_instances directory archs out_device out_host)
  # head_dim of the tile. Those with options (softcap, mask, ALiBi, any scale) serve the sizes between, too. What the kinds are:
  # cpp/src/cuda/mma/config_prefill_mma.h
  set(prefill 64 96 128 192 256)
  set(prefill_options 64 128 256)
  set(prefill_small 128)
  set(decode 64 128 256)

  set(sources "")
  set(rows "")
  if(archs)
    foreach(dtype f16 bf16)
      set(enum_f16 Float16)
      set(enum_bf16 BFloat16)
      set(type "DType::k${enum_${dtype}}")
      foreach(head_dim IN LISTS prefill)
        dlattn_mma_instance(prefill ${dtype}_hd${head_dim} "${type}, ${head_dim}, PrefillKind::kPlain")
      endforeach()
      foreach(head_dim IN LISTS prefill_options)
        dlattn_mma_instance(prefill ${dtype}_hd${head_dim}_options "${type}, ${head_dim}, PrefillKind::kOptions")
      endforeach()
      foreach(head_dim IN LISTS prefill_small)
        dlattn_mma_instance(prefill ${dtype}_hd${head_dim}_small "${type}, ${head_dim}, PrefillKind::kSmall")
      endforeach()
      foreach(head_dim IN LISTS decode)
        dlattn_mma_instance(decode ${dtype}_hd${head_dim} "${type}, ${head_dim}")
      endforeach()
    endforeach()
  endif()
  file(
    CONFIGURE
    OUTPUT "${directory}/rows_mma.cpp"
    CONTENT [=[
#include "cuda/mma/rows_mma.h"

namespace dlattn::cuda {

void add_mma_rows([[maybe_unused]] std::vector<KernelRow>* table) {
@rows@}

}  // namespace dlattn::cuda
]=]
    @ONLY)
  set(${out_device} "${sources}" PARENT_SCOPE)
  set(${out_host} "${directory}/rows_mma.cpp" PARENT_SCOPE)
endfunction()

# One of them; its caller's lists grow.
macro(dlattn_mma_instance phase suffix arguments)
  set(source "${directory}/attention_${phase}_mma_${suffix}.cu")
  set(instance_phase ${phase})
  set(instance_arguments "${arguments}")
  file(
    CONFIGURE
    OUTPUT "${source}"
    CONTENT [[
#include "cuda/mma/launch_@instance_phase@_mma.cuh"

namespace dlattn::cuda {

template void launch_@instance_phase@_mma<@instance_arguments@>(const AttentionProblem&, const KernelRow&,
                                                                const LaunchContext&);

}  // namespace dlattn::cuda
]]
    @ONLY)
  list(APPEND sources "${source}")
  string(APPEND rows "  table->push_back(${phase}_mma_row<${arguments}>(\"attention_${phase}_mma_${suffix}\"));\n")
endmacro()
