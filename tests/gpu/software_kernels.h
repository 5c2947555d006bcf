// The kernels of compute/device_moves.h by name, as functions of the host.
#ifndef TF_HVD_TESTS_GPU_SOFTWARE_KERNELS_H_
#define TF_HVD_TESTS_GPU_SOFTWARE_KERNELS_H_

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "compute/device_moves.h"

namespace tf_hvd {

struct SoftwareKernel {
  const char* name;
  // The work of one thread of one block.
  void (*tile)(const MoveArguments& arguments, int64_t tile, int thread,
               int threads);
  size_t input_bytes;  // of an element
  size_t output_bytes;
};

template <typename Way>
void SoftwareTile(const MoveArguments& arguments, int64_t tile, int thread,
                  int threads) {
  MoveTile<Way>(arguments, tile, thread, threads);
}

inline const std::vector<SoftwareKernel>& SoftwareKernels() {
#define TF_HVD_SOFTWARE_KERNEL(kernel, Way)                      \
  {#kernel, SoftwareTile<Way>, sizeof(typename Way::In::Stored), \
   sizeof(typename Way::Out::Stored)},
  static const std::vector<SoftwareKernel> kernels = {
      TF_HVD_DEVICE_MOVES(TF_HVD_SOFTWARE_KERNEL)};
#undef TF_HVD_SOFTWARE_KERNEL
  return kernels;
}

// Null if there is no such kernel.
inline const SoftwareKernel* FindSoftwareKernel(std::string_view name) {
  for (const SoftwareKernel& kernel : SoftwareKernels()) {
    if (kernel.name == name) return &kernel;
  }
  return nullptr;
}

}  // namespace tf_hvd

#endif  // TF_HVD_TESTS_GPU_SOFTWARE_KERNELS_H_
