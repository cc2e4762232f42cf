# dlattn_warnings: the warnings of this project's own code. Link it PRIVATE; it is never installed.
#
# CUDA files get those that nvcc's generated host code survives (no -Wpedantic), and ptxas's: registers that spill, arrays in
# local memory. Not in a debug build, where everything is in local memory.
add_library(dlattn_warnings INTERFACE)
target_compile_options(
  dlattn_warnings
  INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wpedantic;-Wshadow;-Wundef;-Wnon-virtual-dtor>
    $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra,-Wshadow>
    $<$<AND:$<COMPILE_LANGUAGE:CUDA>,$<NOT:$<CONFIG:Debug>>>:-Xptxas=--warn-on-spills,--warn-on-local-memory-usage>)
if(DLATTN_WERROR)
  target_compile_options(
    dlattn_warnings
    INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>
              $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings;-Xptxas=--warning-as-error;-Xcompiler=-Werror>)
endif()
