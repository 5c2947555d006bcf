// AbortPath: detects and announces, for one rank under MPI, that the job cannot
// continue. Uses the node's abort board, the flood between nodes, and checks
// for dead ranks.
//
// Raise may be called on any thread and touches shared memory only. Poll is
// called only by the holder of the progress lock, because it may call MPI.
#ifndef TF_HVD_RUNTIME_TRANSPORT_LIVENESS_ABORT_PATH_H_
#define TF_HVD_RUNTIME_TRANSPORT_LIVENESS_ABORT_PATH_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "runtime/contract/world.h"
#include "runtime/transport/liveness/abort_flood.h"
#include "runtime/transport/segment/abort_board.h"
#include "runtime/transport/segment/segment.h"

namespace tf_hvd {

class AbortPath {
 public:
  static constexpr int64_t kLookNs = kSecond;
  // A leader that has not forwarded a record within this time must be dead.
  static constexpr int64_t kLeaderGraceNs = 200 * kMs;

  // The first two must outlive this object. `flood` is null if there is only
  // one node.
  AbortPath(const Topology* topology, ShmSegment* segment,
            std::unique_ptr<AbortFlood> flood);

  void Raise(const AbortRecord& record);

  // The smallest record known here. `now_ns`: of a steady clock.
  std::optional<AbortRecord> Poll(int64_t now_ns);

  // Before MPI_Finalize; call until true.
  bool Stop() { return flood_ == nullptr || flood_->Stop(); }

 private:
  void LookForDeaths();
  void PassOn(int64_t now_ns);
  bool IsFirstAlive() const;

  const Topology* const topology_;
  ShmSegment* const segment_;
  const std::vector<int>& node_;  // the ranks on this node
  const int own_;                 // my place among them
  AbortBoard board_;
  const std::unique_ptr<AbortFlood> flood_;

  int64_t last_look_ns_ = 0;
  uint32_t seen_generation_ = 0;
  std::optional<AbortRecord> smallest_;
  int64_t smallest_since_ns_ = 0;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_LIVENESS_ABORT_PATH_H_
