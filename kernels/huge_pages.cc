#include "kernels/huge_pages.h"

#include <sys/mman.h>

#include <cstdint>

namespace tf_hvd {
namespace {

constexpr uintptr_t kHugePage = uintptr_t{2} << 20;
// From this size on, glibc's allocator requests memory from the system each
// time and gives it back (DEFAULT_MMAP_THRESHOLD_MAX). Below it, glibc keeps
// pages that have been touched.
constexpr size_t kLeast = size_t{32} << 20;

}  // namespace

void AdviseHugePages(void* data, size_t bytes) {
  if (data == nullptr || bytes < kLeast) return;
  const auto begin = reinterpret_cast<uintptr_t>(data);
  const uintptr_t first = (begin + kHugePage - 1) & ~(kHugePage - 1);
  const uintptr_t end = (begin + bytes) & ~(kHugePage - 1);
  static_cast<void>(
      madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE));
}

}  // namespace tf_hvd
