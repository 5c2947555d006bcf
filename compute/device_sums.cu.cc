// The kernels of device_sums.h.
#include "compute/device_sums.h"

#define TF_HVD_DEFINE_SUM(name, T)                                   \
  extern "C" __global__ void name(tf_hvd::SumArguments arguments) {  \
    tf_hvd::SumBlock<T>(arguments, static_cast<int64_t>(blockIdx.x), \
                        static_cast<int64_t>(gridDim.x),             \
                        static_cast<int>(threadIdx.x),               \
                        static_cast<int>(blockDim.x));               \
  }

TF_HVD_DEVICE_SUMS(TF_HVD_DEFINE_SUM)
