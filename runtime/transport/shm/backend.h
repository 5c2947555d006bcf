// ShmBackend: the collectives of sets with all ranks on one machine, through
// its shared memory (docs/adr/0010). One stream of pieces for each process set,
// through all of its operations: while one rank still reduces a piece, the next
// ones arrive, including those of the next operation.
//
// No rank blocks on another, and none writes to another's memory, so the
// remains of an abandoned operation are harmless.
//
// As for Backend, called only by the holder of the progress lock.
#ifndef TF_HVD_RUNTIME_TRANSPORT_SHM_BACKEND_H_
#define TF_HVD_RUNTIME_TRANSPORT_SHM_BACKEND_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/status.h"
#include "runtime/contract/operation.h"
#include "runtime/transport/segment/arena.h"
#include "runtime/transport/shm/across.h"
#include "runtime/transport/shm/slot_writer.h"

namespace tf_hvd {

class ShmOperation;

class ShmBackend final : public Backend {
 public:
  // Wakes the rank with this local rank if it sleeps.
  using Wake = std::function<void(size_t local_rank)>;

  // `node`: the ranks on this machine, ascending; `rank`: this one.
  ShmBackend(const ShmArena& arena, std::vector<int> node, int rank, Wake wake,
             SlotOptions options = SlotOptions());
  std::string_view name() const override { return "shm"; }

  bool Serves(const OperationSpec& spec) const override;
  Status Make(OperationSpec spec,
              std::unique_ptr<Operation>* operation) override;
  size_t window() const override { return ShmArena::kSlots; }

  const SlotCounts& counts() const { return counts_; }

  // Makes the operation of this node's members of a set, `local.ranks`, that
  // also has members on other nodes: see PlanAcross. Called in the agreed
  // order, interleaved with Make.
  Status MakeAcross(OperationSpec local, ShmAcross across,
                    std::unique_ptr<Operation>* operation);

 private:
  friend class ShmOperation;

  // This rank's state of the pieces of one set.
  struct Stream {
    explicit Stream(SlotWriter of) : writer(std::move(of)) {}

    uint64_t published = 0;
    uint64_t consumed = 0;
    uint64_t reduced = 0;
    uint64_t done = 0;
    SlotWriter writer;
  };
  // A slot of this rank that some rank, perhaps this one, may still read.
  struct InUse {
    uint32_t slot = 0;
    uint64_t piece = 0;
    std::vector<const ProgressLine*> readers;
  };

  Stream* StreamOf(int32_t set);
  size_t LocalRankOf(int rank) const;
  // A slot that no rank reads any more; -1 if there is none.
  int FreeSlot();

  const ShmArena arena_;
  const std::vector<int> node_;
  const int rank_;
  const Wake wake_;
  const SlotOptions options_;
  SlotCounts counts_;
  std::map<int32_t, Stream> streams_;
  // Operations of all sets that have not published all of their pieces, in the
  // agreed order. The first one publishes. A later one takes no slot that the
  // earlier ones need to continue.
  std::deque<ShmOperation*> publishing_;
  std::vector<uint32_t> free_;
  std::vector<InUse> in_use_;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_SHM_BACKEND_H_
