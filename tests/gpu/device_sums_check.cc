#include "tests/gpu/device_sums_check.h"

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "tests/gpu/mirror.h"
#include "tests/gpu/software_sums.h"

namespace tf_hvd {
namespace {

// Compares the device's result from its copy with the host's own result.
Status Compare(DeviceSide* side, Mirror* memory, const std::string& what) {
  std::vector<char> got(memory->bytes());
  TF_HVD_RETURN_IF_ERROR(
      side->Download(memory->device(), got.data(), got.size()));
  if (std::memcmp(got.data(), memory->host(), got.size()) == 0) {
    return Status::Ok();
  }
  return Internal(what + " differs from the host's");
}

// Numbers with sums that round. Integers use random bits: their sums wrap
// around.
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

Status CheckSum(DeviceSide* side, const SoftwareSums& kernel, int64_t count,
                std::mt19937_64* random) {
  constexpr int64_t kRanks = 9;
  const auto bytes = static_cast<size_t>(count) * kernel.element_bytes;
  Mirror vectors(kRanks * bytes + 8);
  Mirror sums(bytes);
  DrawNumbers(kernel, &vectors, random);
  for (Mirror* memory : {&vectors, &sums}) {
    TF_HVD_RETURN_IF_ERROR(memory->Open(side));
  }
  SumArguments there{vectors.device(), sums.device(), kRanks, count};
  const SumArguments here{vectors.host(), sums.host(), kRanks, count};
  void* arguments[] = {&there};
  // Fewer blocks than elements: each thread adds several.
  constexpr unsigned kBlocks = 5;
  TF_HVD_RETURN_IF_ERROR(side->device()->Launch(
      side->stream(), kernel.name, kBlocks, kSumThreads, arguments));
  for (int64_t block = 0; block < kBlocks; ++block) {
    for (int thread = 0; thread < kSumThreads; ++thread) {
      kernel.block(here, block, kBlocks, thread, kSumThreads);
    }
  }
  const Status same = Compare(side, &sums, kernel.name);
  for (Mirror* memory : {&vectors, &sums}) side->Free(memory->device());
  return same;
}

}  // namespace

Status CheckSums(DeviceSide* side, int* launches) {
  std::mt19937_64 random(12);
  *launches = 0;
  for (const SoftwareSums& kernel : SoftwareSumsAll()) {
    for (const int64_t count : {1, 7, 6000}) {
      TF_HVD_RETURN_IF_ERROR(CheckSum(side, kernel, count, &random));
      ++*launches;
    }
  }
  return Status::Ok();
}

}  // namespace tf_hvd
