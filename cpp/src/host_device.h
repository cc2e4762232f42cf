// Functions of both sides of the machine.
#pragma once

#ifdef __CUDACC__
#define DLATTN_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define DLATTN_HOST_DEVICE inline
#endif
