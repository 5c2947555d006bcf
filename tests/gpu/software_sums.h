// The kernels of compute/device_sums.h by name, as functions of the host.
#ifndef TF_HVD_TESTS_GPU_SOFTWARE_SUMS_H_
#define TF_HVD_TESTS_GPU_SOFTWARE_SUMS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "compute/device_sums.h"

namespace tf_hvd {

struct SoftwareSums {
  const char* name;
  // The work of one thread of one block.
  void (*block)(const SumArguments& arguments, int64_t block, int64_t blocks,
                int thread, int threads);
  size_t element_bytes;
};

template <typename T>
void SoftwareSum(const SumArguments& arguments, int64_t block, int64_t blocks,
                 int thread, int threads) {
  SumBlock<T>(arguments, block, blocks, thread, threads);
}

inline const std::vector<SoftwareSums>& SoftwareSumsAll() {
#define TF_HVD_SOFTWARE_SUMS(kernel, T)  \
  { #kernel, SoftwareSum<T>, sizeof(T) } \
  ,
  static const std::vector<SoftwareSums> kernels = {
      TF_HVD_DEVICE_SUMS(TF_HVD_SOFTWARE_SUMS)};
#undef TF_HVD_SOFTWARE_SUMS
  return kernels;
}

}  // namespace tf_hvd

#endif  // TF_HVD_TESTS_GPU_SOFTWARE_SUMS_H_
