#include "kernels/huge_pages.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>

namespace tf_hvd {
namespace {

constexpr size_t kBytes = size_t{64} << 20;

// The flags in /proc of the mapping that contains the address: whether it is
// marked for huge pages.
std::string FlagsOf(const void* address) {
  const auto wanted = reinterpret_cast<uintptr_t>(address);
  std::ifstream maps("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0;
    uintptr_t end = 0;
    char dash = 0;
    std::istringstream words(line);
    if (words >> std::hex >> begin >> dash >> end && dash == '-') {
      inside = begin <= wanted && wanted < end;
    } else if (inside && line.rfind("VmFlags:", 0) == 0) {
      return line + " ";
    }
  }
  return "";
}

TEST(HugePages, LargeMemoryIsMarkedAndSmallIsNot) {
  void* const memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  char* const data = static_cast<char*>(memory);
  data[5] = 'x';
  AdviseHugePages(data, kBytes / 4);
  const std::string before = FlagsOf(data + kBytes / 8);
  if (before.empty() || madvise(data, 0, MADV_HUGEPAGE) != 0) {
    munmap(memory, kBytes);
    GTEST_SKIP() << "this system has no huge pages, or does not report them";
  }
  EXPECT_EQ(before.find(" hg "), std::string::npos) << before;
  AdviseHugePages(data + 1, kBytes - 2);
  const std::string after = FlagsOf(data + kBytes / 2);
  EXPECT_NE(after.find(" hg "), std::string::npos) << after;
  EXPECT_EQ(data[5], 'x');
  EXPECT_EQ(data[kBytes / 2], 0);
  munmap(memory, kBytes);
}

TEST(HugePages, NullIsIgnored) { AdviseHugePages(nullptr, kBytes); }

}  // namespace
}  // namespace tf_hvd
