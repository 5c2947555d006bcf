// Huge pages for large results. Memory that TensorFlow has just got from the
// system is mapped only when touched: 64 MiB take 16,000 page faults of 4 KiB,
// which cost more time than the reduction itself, or 32 faults of 2 MiB.
#ifndef TF_HVD_KERNELS_HUGE_PAGES_H_
#define TF_HVD_KERNELS_HUGE_PAGES_H_

#include <cstddef>

namespace tf_hvd {

// Requests huge pages for [data, data + bytes) if the range is large enough for
// several (madvise(2), MADV_HUGEPAGE). A hint: contents do not change, and
// systems without huge pages ignore it. Any thread.
void AdviseHugePages(void* data, size_t bytes);

}  // namespace tf_hvd

#endif  // TF_HVD_KERNELS_HUGE_PAGES_H_
