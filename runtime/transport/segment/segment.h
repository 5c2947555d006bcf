// ShmSegment: the memory that the ranks of one node share: doorbells, rings of
// the tree's edges, the abort board, who is alive, and where tensors move.
//
// The node's leader makes it, the others map it, then its name is removed: it
// vanishes with the last process however that ends.
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

// What decides the size of a segment; the same on all ranks of the node.
struct ShmShape {
  int local_size = 1;
  bool has_arena = false;
};

class ShmSegment {
 public:
  // What a segment takes of /dev/shm.
  static size_t BytesFor(const ShmShape& shape);

  // The leader: a new segment for `local_size` ranks. Room is reserved now, but
  // for the ranks' slots, so that a full /dev/shm is this error and not a
  // SIGBUS later.
  static Status Create(const ShmShape& shape,
                       std::unique_ptr<ShmSegment>* segment);

  // The others: maps the segment of that name.
  static Status Attach(const std::string& name, const ShmShape& shape,
                       std::unique_ptr<ShmSegment>* segment);

  ShmSegment(const ShmSegment&) = delete;
  ShmSegment& operator=(const ShmSegment&) = delete;
  ~ShmSegment();

  const std::string& name() const { return name_; }

  // Each rank: room for its slots, with the same error. Where a machine has
  // several memory nodes, the kernel takes it from that of the caller's core.
  Status ReserveSlots(int local_rank);

  // The leader, once all ranks have attached.
  void RemoveName();

  // Says that this rank is alive, for as long as its process is. The kernel
  // lets go of the claim when the process ends, in whatever way, across
  // containers; a child of the process does not inherit it.
  Status ClaimAlive(int local_rank);

  // This rank leaves in order: from now on its end is no death.
  void MarkLeft(int local_rank);

  // The script has closed this rank's file, and its claim went with it: nobody
  // shall take that for its death, nor can this rank tell who has died.
  void LoseFile(int local_rank);

  // True if the process of that other rank has ended without MarkLeft.
  bool HasDied(int local_rank) const;
  bool HasLeft(int local_rank) const;

  // The process that claims that other rank; nothing if none does any more, and
  // 0 if it cannot be seen from here.
  std::optional<pid_t> HolderOf(int local_rank) const;

  // How the ranks of the node end MPI (FinalizeBarrier): together, or not at
  // all. The first who settles it decides for all; returns what counts.
  bool SettleEnd(bool together);
  std::optional<bool> settled_end() const;

  Doorbell* doorbell(int local_rank);

  // Whether another rank was on the core that this thread is on when it looked
  // last. For threads of that rank that wait; they tell the others so where
  // they are.
  bool SharesCore(int local_rank);

  AbortState* abort_state();
  AbortSlot* abort_slots();

  // The ring from local rank `from` to `to`; one of them is 0, the leader.
  ShmRing* ring(int from, int to);

  // Through which tensors move; nothing if the shape is without.
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
