// P2POperation: one operation on messages. Executes its plan, one step or one
// block of a step at a time, and never waits.
//
// As for Operation, called only by the holder of the progress lock.
#ifndef TF_HVD_RUNTIME_TRANSPORT_P2P_OPERATION_H_
#define TF_HVD_RUNTIME_TRANSPORT_P2P_OPERATION_H_

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "runtime/contract/operation.h"
#include "runtime/contract/rank_group.h"
#include "runtime/contract/spans.h"
#include "runtime/transport/p2p/backend.h"
#include "runtime/transport/p2p/message_set.h"
#include "runtime/transport/p2p/plan.h"

namespace tf_hvd {

class P2POperation final : public Operation {
 public:
  // `me`: this rank's place in the set.
  P2POperation(P2PBackend* backend, OperationSpec spec, size_t me);
  ~P2POperation() override;

  Status Progress(int64_t budget_ns, Poll* poll) override;
  bool Abandon() override { return messages_.Abandon(); }

 private:
  // Executes one step, or one block of it.
  Status Take(P2PPlan::Step* step);

  P2PBackend* const backend_;
  const OperationSpec spec_;
  const RankGroup group_;
  const RankRuns runs_;
  const int tag_;
  bool begun_ = false;
  P2PBackend::Block staging_;
  P2PPlan plan_;
  Phase did_ = Phase::kExchange;  // the last phase
  int64_t worked_ = 0;            // elements done of the current step
  MessageSet messages_;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_P2P_OPERATION_H_
