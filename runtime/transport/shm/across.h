// Pieces of operations that other nodes have their part in (docs/adr/0011): the
// ranks that hold the same place on each node, as far as all nodes have one,
// exchange by messages what the rest of their nodes gives and needs.
#ifndef TF_HVD_RUNTIME_TRANSPORT_SHM_ACROSS_H_
#define TF_HVD_RUNTIME_TRANSPORT_SHM_ACROSS_H_

#include <cstddef>
#include <memory>

#include "runtime/contract/node_parts.h"
#include "runtime/contract/operation.h"
#include "runtime/transport/shm/plan.h"

namespace tf_hvd {

// What of an operation is this node's part, and what goes across.
struct ShmAcross {
  std::shared_ptr<const NodeLayout> layout;
  size_t slot_bytes = 0;  // no more than the slots of any of the nodes have
  size_t root = 0;        // kBroadcast: its place in the set
  // Of the owners that hold this rank's place, but for what each piece is.
  OperationSpec exchange;
  Backend* by = nullptr;
};

// Whether the slots have room for parts that are worth a message.
bool HasRoomAcross(OpKind kind, const NodeLayout& layout, size_t slot_bytes);

// `local`: in the words of this rank but with the ranks of this node, of which
// it is the one at `me`. Spans and numbers are those of all ranks of the set.
// Both stay.
std::unique_ptr<ShmPlan> PlanAcross(const OperationSpec& local, size_t me,
                                    const ShmAcross& across);

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_SHM_ACROSS_H_
