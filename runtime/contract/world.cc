#include "runtime/contract/world.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <string_view>
#include <utility>

namespace tf_hvd {
namespace {

// Place of `rank` in `ranks`, which is ascending.
size_t PlaceIn(const std::vector<int>& ranks, int rank) {
  return static_cast<size_t>(
      std::lower_bound(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

}  // namespace

SetMembers Topology::Everyone() const {
  if (everyone != nullptr) return everyone;
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return MembersOf(std::move(ranks));
}

int Topology::NodeOf(int of_rank) const {
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (std::binary_search(nodes[i].begin(), nodes[i].end(), of_rank)) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

int Topology::LocalRank() const {
  const int node = NodeOf(rank);
  if (node < 0) return 0;
  return static_cast<int>(PlaceIn(nodes[static_cast<size_t>(node)], rank));
}

int Topology::LocalSize() const {
  const int node = NodeOf(rank);
  if (node < 0) return 1;
  return static_cast<int>(nodes[static_cast<size_t>(node)].size());
}

// Counts only nodes that have a rank with my local rank.
int Topology::CrossRank() const {
  const auto local = static_cast<size_t>(LocalRank());
  const int node = std::max(NodeOf(rank), 0);
  return static_cast<int>(
      std::count_if(nodes.begin(), nodes.begin() + node,
                    [local](const auto& one) { return one.size() > local; }));
}

int Topology::CrossSize() const {
  const auto local = static_cast<size_t>(LocalRank());
  const auto ranks =
      std::count_if(nodes.begin(), nodes.end(),
                    [local](const auto& one) { return one.size() > local; });
  return std::max(static_cast<int>(ranks), 1);
}

uint64_t AbortRecord::Key() const {
  uint32_t hash = 2166136261u;  // FNV-1a
  for (const char c : std::string_view(text).substr(0, kMaxText)) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  }
  return (static_cast<uint64_t>(error_class) << 56) |
         (static_cast<uint64_t>(static_cast<uint32_t>(rank)) << 24) |
         (hash >> 8);
}

std::vector<std::string> Topology::RankTexts() const {
  std::vector<std::string> texts;
  for (int of_rank = 0; of_rank < size; ++of_rank) {
    texts.push_back(RankText(of_rank));
  }
  return texts;
}

std::string Topology::RankText(int of_rank) const {
  return tf_hvd::RankText(of_rank, hosts);
}

std::string RankText(int rank, const std::vector<std::string>& hosts) {
  return "rank " + std::to_string(rank) + " (" +
         hosts[static_cast<size_t>(rank)] + ")";
}

bool Topology::Homogeneous() const {
  return std::all_of(nodes.begin(), nodes.end(), [this](const auto& node) {
    return node.size() == nodes.front().size();
  });
}

std::function<void(const std::string&)> WarnForMachine(const Topology& topology,
                                                       LogLevel lowest) {
  if (topology.LocalRank() != 0 || lowest > LogLevel::kWarning) return nullptr;
  return [who = topology.RankText(topology.rank)](const std::string& text) {
    WriteLog(LogLevel::kWarning, who, text);
  };
}

}  // namespace tf_hvd
