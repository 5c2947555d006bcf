#include "tests/gpu/device_sums_check.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "tests/gpu/mirror.h"
#include "tests/gpu/software_sums.h"

namespace tf_hvd {
namespace {

template <typename T>
T* As(char* memory) {
  return reinterpret_cast<T*>(memory);
}

// What the device made of its copy against what the host made of its own.
Status Compare(DeviceSide* side, Mirror* memory, const std::string& what) {
  std::vector<char> got(memory->bytes());
  TF_HVD_RETURN_IF_ERROR(
      side->Download(memory->device(), got.data(), got.size()));
  if (std::memcmp(got.data(), memory->host(), got.size()) == 0) {
    return Status::Ok();
  }
  return Internal(what + " differs from the host's");
}

// Numbers whose sums round. (Of others any bits: they wrap around.)
void DrawNumbers(const SoftwareSums& kernel, Mirror* memory,
                 std::mt19937_64* random) {
  const bool is_float = std::strstr(kernel.name, "float") != nullptr;
  for (size_t at = 0; at + 8 <= memory->bytes(); at += kernel.element_bytes) {
    const uint64_t any = (*random)();
    const double real = static_cast<double>(any % 100'001) / 7.0 - 5000.0;
    const auto less = static_cast<float>(real);
    const void* from = &any;
    if (is_float) from = kernel.element_bytes == 8 ? (const void*)&real : &less;
    std::memcpy(memory->host() + at, from, kernel.element_bytes);
  }
}

// Some sums of no rows, some of one, some of many.
Status CheckRowSums(DeviceSide* side, const SoftwareSums& kernel,
                    int64_t columns, std::mt19937_64* random) {
  constexpr int64_t kRows = 3000;
  constexpr int64_t kSums = 200;
  const auto bytes = static_cast<size_t>(columns) * kernel.element_bytes;
  Mirror values(kRows * bytes + 8);
  Mirror order(kRows * sizeof(int64_t));
  Mirror ends(kSums * sizeof(int64_t));
  Mirror sums(kSums * bytes);
  DrawNumbers(kernel, &values, random);
  auto* const numbers = As<int64_t>(order.host());
  for (int64_t i = 0; i < kRows; ++i) numbers[i] = i;
  std::shuffle(numbers, numbers + kRows, *random);
  auto* const last = As<int64_t>(ends.host());
  for (int64_t i = 0; i < kSums; ++i) {
    last[i] = static_cast<int64_t>((*random)() % kRows);
  }
  std::sort(last, last + kSums);
  last[kSums - 1] = kRows;
  for (Mirror* memory : {&values, &order, &ends, &sums}) {
    TF_HVD_RETURN_IF_ERROR(memory->Open(side));
  }
  const auto at = [&](bool there) {
    const auto of = [there](Mirror& memory) {
      return there ? memory.device() : memory.host();
    };
    return SumRowsArguments{of(values),
                            As<int64_t>(of(order)),
                            As<int64_t>(of(ends)),
                            of(sums),
                            kRows,
                            kSums,
                            columns};
  };
  SumRowsArguments there = at(true);
  void* arguments[] = {&there};
  // Fewer blocks than there are elements: each thread takes several.
  constexpr unsigned kBlocks = 5;
  TF_HVD_RETURN_IF_ERROR(side->device()->Launch(
      side->stream(), kernel.name, kBlocks, kSumRowsThreads, arguments));
  for (int64_t block = 0; block < kBlocks; ++block) {
    for (int thread = 0; thread < kSumRowsThreads; ++thread) {
      kernel.block(at(false), block, kBlocks, thread, kSumRowsThreads);
    }
  }
  const Status same = Compare(side, &sums, kernel.name);
  for (Mirror* memory : {&values, &order, &ends, &sums}) {
    side->Free(memory->device());
  }
  return same;
}

}  // namespace

Status CheckSums(DeviceSide* side, int* launches) {
  std::mt19937_64 random(12);
  *launches = 0;
  for (const SoftwareSums& kernel : SoftwareSumsAll()) {
    for (const int64_t columns : {1, 7, 64}) {
      TF_HVD_RETURN_IF_ERROR(CheckRowSums(side, kernel, columns, &random));
      ++*launches;
    }
  }
  return Status::Ok();
}

}  // namespace tf_hvd
