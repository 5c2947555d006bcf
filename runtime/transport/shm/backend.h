// ShmBackend: the collectives of sets whose ranks share a machine, through its
// shared memory (docs/adr/0010). One stream of pieces for each process set,
// through all of its operations: while one rank still reduces a piece, the next
// ones come in, also those of the next operation.
//
// No rank waits for another, and none writes to another's memory: what an
// operation leaves behind when it is given up harms nobody.
//
// As Backend: holder of the progress lock only.
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
  // Wakes the rank if it sleeps; by its local rank.
  using Wake = std::function<void(size_t local_rank)>;

  // `node`: the ranks of this machine, ascending; `rank`: this one.
  ShmBackend(const ShmArena& arena, std::vector<int> node, int rank, Wake wake,
             SlotOptions options = SlotOptions());
  std::string_view name() const override { return "shm"; }

  bool Serves(const OperationSpec& spec) const override;
  Status Make(OperationSpec spec,
              std::unique_ptr<Operation>* operation) override;
  size_t window() const override { return ShmArena::kSlots; }

  const SlotCounts& counts() const { return counts_; }

  // An operation of this node's members of a set, `local.ranks`, of which other
  // nodes have some too: see PlanAcross. Called in the agreed order, among
  // those of Make.
  Status MakeAcross(OperationSpec local, ShmAcross across,
                    std::unique_ptr<Operation>* operation);

 private:
  friend class ShmOperation;

  // What this rank knows of the pieces of one set.
  struct Stream {
    explicit Stream(SlotWriter of) : writer(std::move(of)) {}

    uint64_t published = 0;
    uint64_t consumed = 0;
    uint64_t reduced = 0;
    uint64_t done = 0;
    SlotWriter writer;
  };
  // A slot of mine that somebody, perhaps this rank, may still read.
  struct InUse {
    uint32_t slot = 0;
    uint64_t piece = 0;
    std::vector<const ProgressLine*> readers;
  };

  Stream* StreamOf(int32_t set);
  size_t LocalRankOf(int rank) const;
  // A slot that nobody reads any more; -1 if there is none.
  int FreeSlot();

  const ShmArena arena_;
  const std::vector<int> node_;
  const int rank_;
  const Wake wake_;
  const SlotOptions options_;
  SlotCounts counts_;
  std::map<int32_t, Stream> streams_;
  // Operations of all sets that have not published all of their pieces, in the
  // agreed order. The first one publishes: what comes later takes no slot
  // without which that could not go on.
  std::deque<ShmOperation*> publishing_;
  std::vector<uint32_t> free_;
  std::vector<InUse> in_use_;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_SHM_BACKEND_H_
