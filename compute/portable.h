// Definitions shared by CPU and GPU code. GPU code is compiled by NVRTC, which
// has no headers, and by nvcc.
#ifndef TF_HVD_COMPUTE_PORTABLE_H_
#define TF_HVD_COMPUTE_PORTABLE_H_

#ifdef __CUDACC_RTC__

// Integer types of 64-bit Linux.
using int8_t = signed char;
using uint8_t = unsigned char;
using int16_t = short;
using uint16_t = unsigned short;
using int32_t = int;
using uint32_t = unsigned int;
using int64_t = long;
using uint64_t = unsigned long;
using uintptr_t = unsigned long;

#else

#include <string.h>

#include <cstdint>

#endif

// Types that the target GPU converts by its own instructions.
#ifdef __CUDA_ARCH__
#define TF_HVD_CONVERTS_HALFS
#if __CUDA_ARCH__ >= 800
#define TF_HVD_CONVERTS_BFLOATS
#endif
#endif

#ifdef __CUDACC__
#define TF_HVD_INLINE __host__ __device__ __forceinline__
#else
// Files for other instruction sets include this: the linker must not use one
// file's copy of a function for the others.
#define TF_HVD_INLINE inline __attribute__((always_inline))
#endif

#endif  // TF_HVD_COMPUTE_PORTABLE_H_
