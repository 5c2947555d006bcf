// ShmOperation: one operation through a node's shared memory, executed piece by
// piece; the pieces of a set follow each other through all of its operations.
// If other nodes are involved, each piece is exchanged with them between
// Consume and the gathering of results.
//
// As for Operation, called only by the holder of the progress lock.
#ifndef TF_HVD_RUNTIME_TRANSPORT_SHM_OPERATION_H_
#define TF_HVD_RUNTIME_TRANSPORT_SHM_OPERATION_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "base/status.h"
#include "runtime/contract/operation.h"
#include "runtime/transport/segment/arena.h"
#include "runtime/transport/shm/across.h"
#include "runtime/transport/shm/backend.h"
#include "runtime/transport/shm/plan.h"

namespace tf_hvd {

class ShmOperation final : public Operation {
 public:
  // `me`: this rank's place in the set, or among its members on this node.
  ShmOperation(ShmBackend* backend, OperationSpec spec, size_t me,
               std::optional<ShmAcross> across);
  ~ShmOperation() override { StopPublishing(); }

  Status Progress(int64_t budget_ns, Poll* poll) override;

  // Only this rank writes to its memory: messages of other nodes go to slots,
  // which are never freed.
  bool Abandon() override { return true; }

 private:
  using Counter = std::atomic<uint64_t> ProgressLine::*;

  // A piece with its slice in transit between nodes; null after it has arrived.
  struct Crossing {
    uint64_t piece;
    std::unique_ptr<Operation> operation;
  };

  // Each function performs one step of one piece, if possible. If a rank must
  // be waited for, `awaited_` is set to it; after a failure, `status_`.
  bool PublishOne();
  bool ConsumeOne();
  bool CrossOne(int64_t until_ns);
  bool GatherOne();
  void SetOut(uint64_t piece, const ShmSlots& slots);

  // The first other rank for which `asked` holds and that is not beyond
  // `piece`.
  template <typename Asked>
  bool AllBeyond(uint64_t piece, Counter counter, const Asked& asked);
  void Advance(Counter counter, uint64_t pieces);
  void PublishReduced(uint64_t piece);
  void StopPublishing();
  ShmSlots SlotsOf(uint64_t piece) const;

  ShmBackend* const backend_;
  const OperationSpec spec_;
  const size_t me_;
  const std::optional<ShmAcross> across_;  // empty: no other node is involved
  const std::unique_ptr<ShmPlan> plan_;
  ShmBackend::Stream* const stream_;
  SlotWriter* const writer_;
  const size_t bytes_;  // moved on this rank
  // Pieces are long enough to be timed; for shorter ones the lines are counted.
  const bool timed_;
  const StoreChoice::Alike alike_;
  std::vector<size_t> local_ranks_;   // by place
  std::vector<ProgressLine*> lines_;  // by place
  bool begun_ = false;
  uint64_t first_ = 0;  // of the stream
  // Pieces of this operation that were published, and so on.
  uint64_t published_ = 0;
  uint64_t consumed_ = 0;
  uint64_t gathered_ = 0;
  std::deque<Crossing> crossing_;
  int awaited_ = -1;
  Phase did_ = Phase::kPack;  // the last phase
  Status status_;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_SHM_OPERATION_H_
