// TwoLevelBackend: collectives of sets with members on several nodes (ADR 11),
// all but alltoall, which has nothing to share. The members on a node reduce or
// gather among themselves through its shared memory, each its slice; the ranks
// that own the same slice, one on each node, exchange it by messages; then the
// node's members fetch the results. All slices cross at once, and each byte
// once for each node.
//
// As Backend: holder of the progress lock only.
#ifndef TF_HVD_RUNTIME_TRANSPORT_ROUTING_TWO_LEVEL_H_
#define TF_HVD_RUNTIME_TRANSPORT_ROUTING_TWO_LEVEL_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "base/status.h"
#include "runtime/contract/operation.h"
#include "runtime/contract/point_to_point.h"
#include "runtime/transport/p2p/backend.h"
#include "runtime/transport/segment/arena.h"
#include "runtime/transport/shm/backend.h"

namespace tf_hvd {

class TwoLevelBackend final : public Backend {
 public:
  // `nodes`: the ranks of each node of the job, ascending; `rank`: this one.
  // `shm`, of this node, and `p2p` outlive the backend.
  TwoLevelBackend(std::vector<std::vector<int>> nodes, int rank,
                  ShmBackend* shm, PointToPoint* p2p,
                  size_t max_message_bytes = PointToPoint::kMaxBytes);

  std::string_view name() const override { return "shm+p2p"; }
  bool Serves(const OperationSpec& spec) const override;
  Status Make(OperationSpec spec,
              std::unique_ptr<Operation>* operation) override;
  size_t window() const override { return ShmArena::kSlots; }
  Status SetAdded(int32_t set, const std::vector<int>& ranks) override;
  void SetRemoved(int32_t set) override { layouts_.erase(set); }

 private:
  // A set as it lies on the nodes.
  struct Layout {
    std::shared_ptr<const NodeLayout> nodes;
    size_t most = 0;   // members on one node
    SetMembers local;  // on this node
    SetMembers group;  // the owners of this rank's place; null if it is none
  };

  Layout LayoutOf(const std::vector<int>& ranks) const;
  static OperationSpec ExchangeOf(const OperationSpec& spec,
                                  const Layout& layout);

  const std::vector<std::vector<int>> nodes_;
  const int rank_;
  ShmBackend* const shm_;
  const size_t slot_bytes_;  // that every node's slots have
  P2PBackend across_;
  std::map<int32_t, Layout> layouts_;  // by set, of those with this rank
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_ROUTING_TWO_LEVEL_H_
