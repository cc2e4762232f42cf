# The instances of the mma and wgmma kernels: one list for their sources and for the rows of the kernel table.

# For each family: phase, kind of tile (-: the phase has but one) and head_dims of the tiles. mma's Options (softcap, mask,
# ALiBi, any scale) serve the sizes between, too. What the kinds are: config_prefill_<family>.h in cpp/src/cuda/<family>
set(dlattn_mma_tiles "prefill Plain 64 96 128 192 256" "prefill Options 64 128 256" "prefill Small 128" "decode - 64 128 256")
set(dlattn_mma_kind PrefillKind)
set(dlattn_wgmma_tiles "prefill Plain 64 128 192 256" "prefill Softcap 64 128 192 256" "prefill Small 64")
set(dlattn_wgmma_kind PrefillWgmmaKind)

# dlattn_kernel_instances(FAMILY DIRECTORY ARCHS OUT_DEVICE OUT_HOST): writes a source for each instance and one that adds
# their rows to the kernel table. Without architectures the table gets none.
function(dlattn_kernel_instances family directory archs out_device out_host)
  set(sources "")
  set(rows "")
  if(archs)
    foreach(dtype f16 bf16)
      foreach(tiles IN LISTS dlattn_${family}_tiles)
        string(REPLACE " " ";" head_dims "${tiles}")
        list(POP_FRONT head_dims phase kind)
        foreach(head_dim IN LISTS head_dims)
          dlattn_kernel_instance()
        endforeach()
      endforeach()
    endforeach()
  endif()
  file(
    CONFIGURE
    OUTPUT "${directory}/rows_${family}.cpp"
    CONTENT [=[
#include "cuda/@family@/rows_@family@.h"

namespace dlattn::cuda {

void add_@family@_rows([[maybe_unused]] std::vector<KernelRow>* table) {
@rows@}

}  // namespace dlattn::cuda
]=]
    @ONLY)
  set(${out_device} "${sources}" PARENT_SCOPE)
  set(${out_host} "${directory}/rows_${family}.cpp" PARENT_SCOPE)
endfunction()

# One of them; its caller's lists grow.
macro(dlattn_kernel_instance)
  set(enum_f16 Float16)
  set(enum_bf16 BFloat16)
  set(arguments "DType::k${enum_${dtype}}, ${head_dim}")
  if(NOT kind STREQUAL "-")
    string(APPEND arguments ", ${dlattn_${family}_kind}::k${kind}")
  endif()
  set(name "attention_${phase}_${family}_${dtype}_hd${head_dim}")
  if(NOT kind MATCHES "^(-|Plain)$")
    string(TOLOWER "_${kind}" suffix)
    string(APPEND name "${suffix}")
  endif()
  file(
    CONFIGURE
    OUTPUT "${directory}/${name}.cu"
    CONTENT [[
#include "cuda/@family@/launch_@phase@_@family@.cuh"

namespace dlattn::cuda {

template void launch_@phase@_@family@<@arguments@>(const AttentionProblem&, const KernelRow&,
                                                   const LaunchContext&);

}  // namespace dlattn::cuda
]]
    @ONLY)
  list(APPEND sources "${directory}/${name}.cu")
  string(APPEND rows "  table->push_back(${phase}_${family}_row<${arguments}>(\"${name}\"));\n")
endmacro()
