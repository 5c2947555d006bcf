#include "kernels/topology.h"

#include <algorithm>
#include <string>
#include <utility>

#include "kernels/local_checks.h"

namespace tf_hvd {
namespace {

using Number = int32_t (*)(const Topology& topology);

constexpr std::pair<std::string_view, Number> kNumbers[] = {
    {"HorovodRank", [](const Topology& of) { return int32_t{of.rank}; }},
    {"HorovodLocalRank", [](const Topology& of) { return of.LocalRank(); }},
    {"HorovodLocalSize", [](const Topology& of) { return of.LocalSize(); }},
    {"HorovodCrossRank", [](const Topology& of) { return of.CrossRank(); }},
    {"HorovodCrossSize", [](const Topology& of) { return of.CrossSize(); }},
};

Status ReadOfSet(const Runtime& runtime, bool size, int32_t set,
                 int32_t* value) {
  const SetMembers members = runtime.SetRanks(set);
  if (members == nullptr) return UnknownSet(set);
  const int rank = runtime.topology().rank;
  *value =
      size
          ? static_cast<int32_t>(members->size())
          : int32_t{std::binary_search(members->begin(), members->end(), rank)};
  return Status::Ok();
}

}  // namespace

Status ReadNumber(const Runtime& runtime, std::string_view op, int32_t set,
                  int32_t* value) {
  const bool size = op == "HorovodSize";
  if (size || op == "HorovodProcessSetIncluded") {
    return ReadOfSet(runtime, size, set, value);
  }
  for (const auto& [name, number] : kNumbers) {
    if (name != op) continue;
    *value = number(runtime.topology());
    return Status::Ok();
  }
  return Internal("bug in tf_hvd: " + std::string(op) +
                  " is not a number of the job");
}

}  // namespace tf_hvd
