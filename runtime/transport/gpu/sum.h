// GpuSum: one launch of a kernel of compute/device_sums.h that adds vectors
// which lie one behind the other.
#ifndef TF_HVD_RUNTIME_TRANSPORT_GPU_SUM_H_
#define TF_HVD_RUNTIME_TRANSPORT_GPU_SUM_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "compute/device_sums.h"

namespace tf_hvd {

struct GpuSum {
  std::string kernel;
  // What the device is to read: the vectors' numbers, then how many they are.
  std::vector<int64_t> list;
  SumRowsArguments arguments{};  // but for the list

  size_t row_bytes() const { return list.size() * sizeof(int64_t); }
  unsigned blocks() const {
    const int64_t needed =
        (arguments.columns + kSumRowsThreads - 1) / kSumRowsThreads;
    return static_cast<unsigned>(std::min(kSumRowsBlocks, needed));
  }
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_GPU_SUM_H_
