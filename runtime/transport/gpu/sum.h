// GpuSum: one launch of a kernel of compute/device_sums.h.
#ifndef TF_HVD_RUNTIME_TRANSPORT_GPU_SUM_H_
#define TF_HVD_RUNTIME_TRANSPORT_GPU_SUM_H_

#include <algorithm>
#include <cstdint>
#include <string>

#include "compute/device_sums.h"

namespace tf_hvd {

struct GpuSum {
  std::string kernel;
  SumArguments arguments{};

  unsigned blocks() const {
    const int64_t needed = (arguments.count + kSumThreads - 1) / kSumThreads;
    return static_cast<unsigned>(std::min(kSumBlocks, needed));
  }
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_GPU_SUM_H_
