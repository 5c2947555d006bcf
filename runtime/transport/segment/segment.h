// ShmSegment: the memory shared by the ranks on one node: doorbells, rings of
// the tree's edges, the abort board, signs of life, and the arena for tensors.
//
// The node's leader creates it, the other ranks map it, then its name is
// removed. It vanishes with the last process, however that ends.
#ifndef TF_HVD_RUNTIME_TRANSPORT_SEGMENT_SEGMENT_H_
#define TF_HVD_RUNTIME_TRANSPORT_SEGMENT_SEGMENT_H_

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "base/status.h"
#include "runtime/contract/doorbell.h"
#include "runtime/transport/segment/abort_board.h"
#include "runtime/transport/segment/arena.h"
#include "runtime/transport/segment/edge.h"
#include "runtime/transport/segment/fd_guard.h"

namespace tf_hvd {

// The parameters that determine the size of a segment; the same on all ranks of
// the node.
struct ShmShape {
  int local_size = 1;
  bool has_arena = false;
};

class ShmSegment {
 public:
  // The size of a segment in /dev/shm.
  static size_t BytesFor(const ShmShape& shape);

  // The leader: creates a segment for `local_size` ranks. Space is reserved
  // now, except for the ranks' slots, so that a full /dev/shm is an error here
  // and not a SIGBUS later.
  static Status Create(const ShmShape& shape,
                       std::unique_ptr<ShmSegment>* segment);

  // Other ranks: maps the segment with that name.
  static Status Attach(const std::string& name, const ShmShape& shape,
                       std::unique_ptr<ShmSegment>* segment);

  ShmSegment(const ShmSegment&) = delete;
  ShmSegment& operator=(const ShmSegment&) = delete;
  ~ShmSegment();

  const std::string& name() const { return name_; }

  // Each rank: reserves the space of its slots, with the same error. On a
  // machine with several NUMA nodes the kernel takes it from the caller's node.
  Status ReserveSlots(int local_rank);

  // The leader, once all ranks have attached.
  void RemoveName();

  // Marks this rank as alive as long as its process exists. The kernel releases
  // the claim when the process ends, for any reason, across containers; a child
  // of the process does not inherit it.
  Status ClaimAlive(int local_rank);

  // This rank leaves normally: from now on its end is not a death.
  void MarkLeft(int local_rank);

  // The script has closed this rank's file, which released its claim. Other
  // ranks must not take that for its death, and this rank cannot detect deaths
  // any more.
  void LoseFile(int local_rank);

  // True if the process of that other rank has ended without MarkLeft.
  bool HasDied(int local_rank) const;
  bool HasLeft(int local_rank) const;

  // The process that holds that other rank's claim; empty if none does any
  // more, and 0 if it is not visible from here.
  std::optional<pid_t> HolderOf(int local_rank) const;

  // How the ranks of the node end MPI (FinalizeBarrier): together, or not at
  // all. The first call decides for all; returns the decision.
  bool SettleEnd(bool together);
  std::optional<bool> settled_end() const;

  Doorbell* doorbell(int local_rank);

  // Whether another rank was last seen on this thread's core. For waiting
  // threads of that rank; the call also publishes this thread's core.
  bool SharesCore(int local_rank);

  AbortState* abort_state();
  AbortSlot* abort_slots();

  // The ring from local rank `from` to `to`; one of them is 0, the leader.
  ShmRing* ring(int from, int to);

  // The memory that tensors move through; empty if the shape has none.
  std::optional<ShmArena> arena();

 private:
  struct Header;
  struct RankState;

  ShmSegment(std::string name, const ShmShape& shape);
  Status Map(bool create);
  Header* header() const { return reinterpret_cast<Header*>(memory_); }
  RankState* rank_state(int local_rank) const;

  const std::string name_;
  const ShmShape shape_;
  bool named_ = false;  // this process must remove the name
  OpenFile file_;
  std::atomic<bool> file_lost_{false};
  char* memory_ = nullptr;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_SEGMENT_SEGMENT_H_
