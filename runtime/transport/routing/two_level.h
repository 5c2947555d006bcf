// TwoLevelBackend: collectives of sets with members on several nodes (ADR 11);
// all except alltoall, which has no data in common. The members on a node
// reduce or gather through its shared memory, each one its slice. The ranks
// that own the same slice, one on each node, exchange it by messages. Then the
// node's members fetch the results. All slices cross concurrently, and each
// byte crosses once per node.
//
// As for Backend, called only by the holder of the progress lock.
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
  // `nodes`: the ranks on each node of the job, ascending; `rank`: this one.
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
  // The layout of a set on the nodes.
  struct Layout {
    std::shared_ptr<const NodeLayout> nodes;
    size_t most = 0;   // members on one node
    SetMembers local;  // on this node
    SetMembers group;  // the owners with this rank's place; null if this rank
                       // is not an owner
  };

  Layout LayoutOf(const std::vector<int>& ranks) const;
  static OperationSpec ExchangeOf(const OperationSpec& spec,
                                  const Layout& layout);

  const std::vector<std::vector<int>> nodes_;
  const int rank_;
  ShmBackend* const shm_;
  const size_t slot_bytes_;  // size of each slot, the same on all nodes
  P2PBackend across_;
  std::map<int32_t, Layout> layouts_;  // by set, for sets with this rank
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_ROUTING_TWO_LEVEL_H_
