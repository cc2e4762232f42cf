# dlattn_cuda_family(NAME ARCHS SOURCES...): the kernels of one family, compiled for its architectures and added to dlattn.
#
# Each file's device code is complete (no relocatable device code) and exact: a kernel that approximates says so where it
# does. Without architectures there is no family. Under DLATTN_WERROR the wgmma family is compiled through strict_ptxas.sh.
function(dlattn_cuda_family name archs)
  if(NOT archs)
    return()
  endif()
  set(target dlattn_${name})
  add_library(${target} OBJECT ${ARGN})
  set_target_properties(
    ${target}
    PROPERTIES CUDA_ARCHITECTURES "${archs}"
               CUDA_STANDARD 17
               CUDA_STANDARD_REQUIRED ON
               CUDA_EXTENSIONS OFF
               CUDA_VISIBILITY_PRESET hidden
               VISIBILITY_INLINES_HIDDEN ON
               POSITION_INDEPENDENT_CODE ON)
  target_link_libraries(${target} PRIVATE dlattn_internal dlattn_warnings)
  target_compile_options(${target} PRIVATE $<IF:$<CONFIG:Debug>,-G,-lineinfo> -Xfatbin=-compress-all)
  if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 13.0)  # older drivers of CUDA 12 cannot read it
    target_compile_options(${target} PRIVATE --compress-mode=size)
  endif()
  if(name STREQUAL "wgmma" AND DLATTN_WERROR AND NOT CMAKE_BUILD_TYPE STREQUAL "Debug")
    set(launcher sh "${PROJECT_SOURCE_DIR}/cmake/strict_ptxas.sh" ${CMAKE_CUDA_COMPILER_LAUNCHER})
    set_target_properties(${target} PROPERTIES CUDA_COMPILER_LAUNCHER "${launcher}")
  endif()
  target_sources(dlattn PRIVATE $<TARGET_OBJECTS:${target}>)
endfunction()
