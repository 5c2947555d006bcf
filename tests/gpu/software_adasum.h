// The kernels of compute/device_adasum.h by name, as functions of the host.
#ifndef TF_HVD_TESTS_GPU_SOFTWARE_ADASUM_H_
#define TF_HVD_TESTS_GPU_SOFTWARE_ADASUM_H_

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "compute/device_adasum.h"

namespace tf_hvd {

struct SoftwareAdasum {
  const char* name;
  // One block, thread by thread; from the last one if `backwards`.
  void (*block)(const AdasumArguments& arguments, int64_t block, int threads,
                bool backwards);
};

template <typename Body>
void ForEachThread(int threads, bool backwards, const Body& body) {
  for (int i = 0; i < threads; ++i) body(backwards ? threads - 1 - i : i);
}

template <typename Way>
void SoftwareSumBlock(const AdasumArguments& arguments, int64_t block,
                      int threads, bool backwards) {
  std::vector<AdasumProducts> sums(static_cast<size_t>(threads));
  for (int half = threads;; half /= 2) {
    ForEachThread(threads, backwards, [&](int thread) {
      SumPhase<Way>(arguments, block, thread, threads, half, sums.data());
    });
    if (half == 0) return;
  }
}

template <typename Way>
void SoftwareMapBlock(const AdasumArguments& arguments, int64_t block,
                      int threads, bool backwards) {
  ForEachThread(threads, backwards, [&](int thread) {
    Way::Apply(arguments, block, thread, threads);
  });
}

inline const std::vector<SoftwareAdasum>& SoftwareAdasums() {
#define TF_HVD_SOFTWARE_SUM(kernel, Way) {#kernel, SoftwareSumBlock<Way>},
#define TF_HVD_SOFTWARE_MAP(kernel, Way) {#kernel, SoftwareMapBlock<Way>},
  static const std::vector<SoftwareAdasum> kernels = {TF_HVD_DEVICE_ADASUM_SUMS(
      TF_HVD_SOFTWARE_SUM) TF_HVD_DEVICE_ADASUM_MAPS(TF_HVD_SOFTWARE_MAP)};
#undef TF_HVD_SOFTWARE_SUM
#undef TF_HVD_SOFTWARE_MAP
  return kernels;
}

// Null if there is none.
inline const SoftwareAdasum* FindSoftwareAdasum(std::string_view name) {
  for (const SoftwareAdasum& kernel : SoftwareAdasums()) {
    if (kernel.name == name) return &kernel;
  }
  return nullptr;
}

}  // namespace tf_hvd

#endif  // TF_HVD_TESTS_GPU_SOFTWARE_ADASUM_H_
