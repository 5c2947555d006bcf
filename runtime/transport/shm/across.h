// Pieces of operations that also involve other nodes (docs/adr/0011). The ranks
// with the same place on each node, as far as all nodes have one, exchange the
// data of their nodes by messages.
#ifndef TF_HVD_RUNTIME_TRANSPORT_SHM_ACROSS_H_
#define TF_HVD_RUNTIME_TRANSPORT_SHM_ACROSS_H_

#include <cstddef>
#include <memory>

#include "runtime/contract/node_parts.h"
#include "runtime/contract/operation.h"
#include "runtime/transport/shm/plan.h"

namespace tf_hvd {

// This node's part of an operation, and the exchange with other nodes.
struct ShmAcross {
  std::shared_ptr<const NodeLayout> layout;
  size_t slot_bytes = 0;  // the smallest slot size of all nodes
  size_t root = 0;        // kBroadcast: its place in the set
  // Among the owners with this rank's place; without the data of each piece.
  OperationSpec exchange;
  Backend* by = nullptr;
};

// Whether the slots have room for parts that are large enough for a message.
bool HasRoomAcross(OpKind kind, const NodeLayout& layout, size_t slot_bytes);

// `local`: this rank's view, but with the ranks on this node, among which this
// rank is at `me`. Spans and numbers are those of all ranks of the set. Both
// arguments must outlive the plan.
std::unique_ptr<ShmPlan> PlanAcross(const OperationSpec& local, size_t me,
                                    const ShmAcross& across);

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_SHM_ACROSS_H_
