#include "kernels/verdict.h"

#include <cstring>

#include "base/log.h"
#include "base/mix.h"
#include "runtime/api/runtime.h"

namespace tf_hvd {

// Four sums side by side: a single sum would wait for each multiplication.
int64_t FingerprintOf(const void* data, size_t bytes) {
  constexpr size_t kLanes = 4;
  constexpr size_t kStride = kLanes * sizeof(uint64_t);
  uint64_t lanes[kLanes] = {1, 2, 3, 4};
  const auto* at = static_cast<const char*>(data);
  const auto take = [&lanes](const char* from) {
    for (size_t i = 0; i < kLanes; ++i) {
      uint64_t word = 0;
      std::memcpy(&word, from + i * sizeof(word), sizeof(word));
      lanes[i] = Mixed(lanes[i] ^ word);
    }
  };
  size_t left = bytes;
  for (; left >= kStride; left -= kStride, at += kStride) take(at);
  char rest[kStride] = {};
  if (left > 0) std::memcpy(rest, at, left);
  take(rest);
  uint64_t all = Mixed(bytes);
  for (const uint64_t lane : lanes) all = Mixed(all ^ lane);
  return static_cast<int64_t>(all);
}

Status Tell(const Runtime& runtime, const Verdict& verdict, const bool* wrong,
            size_t count, bool* passed) {
  if (count != verdict.names.size()) {
    return InvalidArgument(std::to_string(verdict.names.size()) +
                           " names for " + std::to_string(count) + " values");
  }
  std::string names;
  for (size_t i = 0; i < verdict.names.size(); ++i) {
    if (!wrong[i]) continue;
    names += (names.empty() ? "" : ", ") + verdict.names[i];
    if (!verdict.fails) break;
  }
  *passed = names.empty();
  if (*passed) return Status::Ok();
  const std::string text = verdict.before + names + verdict.after;
  if (verdict.fails) return InvalidArgument(text);
  const Topology& topology = runtime.topology();
  WriteLog(LogLevel::kWarning, topology.RankText(topology.rank), text);
  return Status::Ok();
}

}  // namespace tf_hvd
