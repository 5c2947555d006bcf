#include "runtime/transport/mpi/settings.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <set>
#include <utility>

#include "runtime/contract/world.h"
#include "runtime/transport/mpi_library/library.h"

namespace tf_hvd {
namespace {

// A form that other versions of tf_hvd can read as well: the host, then names
// and values, each ended by a zero byte.
std::string Encode(const std::string& host, const Settings& settings) {
  std::string text = host + '\0';
  for (const auto& [name, value] : settings) {
    text += name + '\0' + value + '\0';
  }
  return text;
}

void Decode(const std::string& text, std::string* host, Settings* settings) {
  std::vector<std::string> parts;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\0', at), text.size());
    parts.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  if (!parts.empty()) *host = parts.front();
  for (size_t i = 1; i + 1 < parts.size(); i += 2) {
    settings->emplace_back(parts[i], parts[i + 1]);
  }
}

// "rank 0 (a)", "ranks 0, 2, 3 and 5 more".
std::string RanksText(const std::vector<size_t>& ranks,
                      const std::vector<std::string>& hosts) {
  constexpr size_t kShown = 8;
  if (ranks.size() == 1) {
    return RankText(static_cast<int>(ranks[0]), hosts);
  }
  std::string text = "ranks ";
  for (size_t i = 0; i < std::min(ranks.size(), kShown); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  }
  if (ranks.size() > kShown) {
    text += " and " + std::to_string(ranks.size() - kShown) + " more";
  }
  return text;
}

// The value with that name; empty if there is none.
std::optional<std::string> ValueOf(const Settings& settings,
                                   const std::string& name) {
  for (const auto& [known, value] : settings) {
    if (known == name) return "'" + value + "'";
  }
  return std::nullopt;
}

bool MayDiffer(const std::string& name) {
  return !name.empty() && name.front() == kMayDiffer;
}

// "X is 'a' on rank 0 (h) and 'b' on rank 1 (h)"; empty if all have the same.
std::string Difference(const std::string& name,
                       const std::vector<Settings>& of_ranks,
                       const std::vector<std::string>& hosts) {
  std::vector<std::pair<std::string, std::vector<size_t>>> by_value;
  for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
    const auto found = ValueOf(of_ranks[rank], name);
    if (!found.has_value() && MayDiffer(name)) continue;
    const std::string value = found.value_or("(unknown)");
    const auto known =
        std::find_if(by_value.begin(), by_value.end(),
                     [&](const auto& item) { return item.first == value; });
    if (known != by_value.end()) {
      known->second.push_back(rank);
    } else {
      by_value.push_back({value, {rank}});
    }
  }
  if (by_value.size() == 1) return "";
  std::string text = name.substr(MayDiffer(name) ? 1 : 0) + " is ";
  for (size_t i = 0; i < by_value.size(); ++i) {
    if (i > 0) text += i + 1 == by_value.size() ? " and " : ", ";
    text += by_value[i].first + " on " + RanksText(by_value[i].second, hosts);
  }
  return text;
}

// The differences of all names that may differ, or of all others.
std::string Differences(const std::vector<Settings>& of_ranks,
                        const std::vector<std::string>& hosts,
                        bool may_differ) {
  std::set<std::string> seen;
  std::string differences;
  for (const Settings& settings : of_ranks) {
    for (const auto& [name, value] : settings) {
      if (MayDiffer(name) != may_differ || !seen.insert(name).second) continue;
      const std::string one = Difference(name, of_ranks, hosts);
      if (one.empty()) continue;
      differences += (differences.empty() ? "" : "; ") + one;
    }
  }
  return differences;
}

}  // namespace

Status DescribeDifferences(const std::vector<Settings>& of_ranks,
                           const std::vector<std::string>& hosts) {
  const std::string differences = Differences(of_ranks, hosts, false);
  if (differences.empty()) return Status::Ok();
  return FailedPrecondition(
      differences +
      ". This must be the same on all ranks: set variables "
      "to equal values (tf_hvd run passes them on; "
      "mpirun needs -x NAME, mpiexec -genvlist NAME), "
      "and install the same packages");
}

std::string DescribeDoubts(const std::vector<Settings>& of_ranks,
                           const std::vector<std::string>& hosts) {
  const std::string differences = Differences(of_ranks, hosts, true);
  if (differences.empty()) return "";
  return differences +
         ". Ranks that run different code may make different calls, or "
         "compute different results: check whether a copy is out of date";
}

Status CompareSettings(const MpiSession& session, const Settings& mine,
                       std::vector<std::string>* hosts, std::string* doubts) {
  const MpiApi& mpi = session.api();
  char host[512] = "";
  TF_HVD_RETURN_IF_ERROR(MpiResult(mpi, "MPI_Get_processor_name",
                                   mpi.processor_name(mpi.state, host)));
  std::string text = Encode(host, mine);
  const auto ranks = static_cast<size_t>(session.size());
  const auto length = static_cast<int32_t>(text.size());
  std::vector<int32_t> lengths(ranks);
  TF_HVD_RETURN_IF_ERROR(
      session.Gather(&length, sizeof(length), lengths.data()));
  const int32_t longest = *std::max_element(lengths.begin(), lengths.end());
  text.resize(static_cast<size_t>(longest));
  std::string all(ranks * text.size(), '\0');
  TF_HVD_RETURN_IF_ERROR(session.Gather(text.data(), longest, &all[0]));
  std::vector<Settings> of_ranks(ranks);
  hosts->resize(ranks);
  for (size_t rank = 0; rank < ranks; ++rank) {
    Decode(all.substr(rank * text.size(), static_cast<size_t>(lengths[rank])),
           &(*hosts)[rank], &of_ranks[rank]);
  }
  if (session.rank() == 0) *doubts = DescribeDoubts(of_ranks, *hosts);
  return DescribeDifferences(of_ranks, *hosts);
}

}  // namespace tf_hvd
