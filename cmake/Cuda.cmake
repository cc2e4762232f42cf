# DLATTN_CUDA (AUTO, ON, OFF) → DLATTN_HAVE_CUDA: which of cpp/src/cuda and cpp/src/no_cuda is linked. Nothing is silent:
# a build without CUDA says so and why.
set(DLATTN_HAVE_CUDA OFF)
if(DLATTN_CUDA STREQUAL "AUTO" OR DLATTN_CUDA)
  set(dlattn_cuda_reason "the CUDA backend is not in this source tree yet")
  if(NOT DLATTN_CUDA STREQUAL "AUTO")
    message(FATAL_ERROR "dlattn: DLATTN_CUDA is ${DLATTN_CUDA}, but ${dlattn_cuda_reason}; use -DDLATTN_CUDA=OFF")
  endif()
else()
  set(dlattn_cuda_reason "DLATTN_CUDA is ${DLATTN_CUDA}")
endif()
message(STATUS "dlattn: ==== building WITHOUT CUDA: ${dlattn_cuda_reason} ====")
