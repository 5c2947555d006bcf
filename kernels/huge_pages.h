// Huge pages for large results. Memory that TensorFlow has just got from the
// system is not there until it is touched: 64 MiB take 16,000 page faults of
// 4 KiB each, more time than the reduction itself, or 32 of 2 MiB.
#ifndef TF_HVD_KERNELS_HUGE_PAGES_H_
#define TF_HVD_KERNELS_HUGE_PAGES_H_

#include <cstddef>

namespace tf_hvd {

// Asks the system for huge pages in [data, data + bytes), if that is large
// enough to have several (madvise(2), MADV_HUGEPAGE). A hint: it changes no
// contents, and nothing where the system has none. Any thread.
void AdviseHugePages(void* data, size_t bytes);

}  // namespace tf_hvd

#endif  // TF_HVD_KERNELS_HUGE_PAGES_H_
