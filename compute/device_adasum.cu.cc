// The kernels of device_adasum.h.
#include "compute/device_adasum.h"

namespace tf_hvd {

template <typename Way>
__device__ __forceinline__ void SumBlock(const AdasumArguments& arguments) {
  __shared__ AdasumProducts sums[kAdasumThreads];
  const auto block = static_cast<int64_t>(blockIdx.x);
  const auto thread = static_cast<int>(threadIdx.x);
  for (int half = kAdasumThreads; half > 0; half /= 2) {
    SumPhase<Way>(arguments, block, thread, kAdasumThreads, half, sums);
    __syncthreads();
  }
  SumPhase<Way>(arguments, block, thread, kAdasumThreads, 0, sums);
}

}  // namespace tf_hvd

#define TF_HVD_DEFINE_SUM(name, Way)                                   \
  extern "C" __global__ void name(tf_hvd::AdasumArguments arguments) { \
    tf_hvd::SumBlock<tf_hvd::Way>(arguments);                          \
  }

#define TF_HVD_DEFINE_MAP(name, Way)                                   \
  extern "C" __global__ void name(tf_hvd::AdasumArguments arguments) { \
    tf_hvd::Way::Apply(arguments, static_cast<int64_t>(blockIdx.x),    \
                       static_cast<int>(threadIdx.x),                  \
                       static_cast<int>(blockDim.x));                  \
  }

TF_HVD_DEVICE_ADASUM_SUMS(TF_HVD_DEFINE_SUM)
TF_HVD_DEVICE_ADASUM_MAPS(TF_HVD_DEFINE_MAP)
