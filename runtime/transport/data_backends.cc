#include "runtime/transport/data_backends.h"

#include <algorithm>
#include <utility>

namespace tf_hvd {

DataBackends::DataBackends(const Topology& topology,
                           const std::optional<ShmArena>& arena,
                           ShmBackend::Wake wake, PointToPoint* p2p)
    : p2p_(p2p, topology.rank) {
  if (arena.has_value()) {
    const auto node = static_cast<size_t>(topology.NodeOf(topology.rank));
    shm_.emplace(*arena, topology.nodes[node], topology.rank, std::move(wake));
    all_.push_back(&*shm_);
    if (topology.nodes.size() > 1) {
      two_level_.emplace(topology.nodes, topology.rank, &*shm_, p2p);
      all_.push_back(&*two_level_);
    }
  }
  all_.push_back(&p2p_);
}

std::string DataBackends::Describe() const {
  if (!shm_.has_value()) return "by messages";
  if (!two_level_.has_value()) return "through shared memory";
  const std::string across =
      two_level_->other_crosses() ? "; allreduces cross by MPI_Iallreduce" : "";
  return "through shared memory within a machine, by messages between "
         "machines" +
         across;
}

bool DataBackends::NeedArenas(const Topology& topology, bool other_crosses) {
  if (other_crosses && topology.nodes.size() > 1) return true;
  return std::any_of(topology.nodes.begin(), topology.nodes.end(),
                     [](const auto& node) { return node.size() > 1; });
}

}  // namespace tf_hvd
