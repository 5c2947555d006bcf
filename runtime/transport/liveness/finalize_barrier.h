// FinalizeBarrier: whether the ranks of a node end MPI together. MPI_Finalize
// waits for all ranks, without a limit, and one that is stopped never comes: so
// it is called only when all ranks of the node have come to it and run.
//
// Ranks of other nodes are not seen: for those MPI_Finalize waits.
#ifndef TF_HVD_RUNTIME_TRANSPORT_LIVENESS_FINALIZE_BARRIER_H_
#define TF_HVD_RUNTIME_TRANSPORT_LIVENESS_FINALIZE_BARRIER_H_

#include <cstdint>
#include <optional>

#include "base/clock.h"
#include "runtime/transport/segment/segment.h"

namespace tf_hvd {

// What is known of the process of a rank. One that cannot be seen (it is in
// another container) counts as running.
enum class Life { kRuns, kStopped, kGone };
Life LifeOf(const ShmSegment& segment, int local_rank);

class FinalizeBarrier {
 public:
  // For how long a rank may be stopped: somebody may just be looking at it.
  static constexpr int64_t kPatienceNs = 5 * kSecond;

  // Who keeps the ranks from ending together.
  struct Absent {
    int local_rank = 0;
    Life life = Life::kRuns;
  };

  // `segment` outlives this; the node's `count` ranks, mine is `own`.
  FinalizeBarrier(ShmSegment* segment, int count, int own)
      : segment_(segment), count_(count), own_(own) {}

  // After MarkLeft. True when all ranks have come: MPI may be finalized. False
  // if one of them does not come, or has refused; `absent` is filled by the
  // rank that has found that. Waits for one that runs for as long as it works.
  bool Wait(std::optional<Absent>* absent);

  // This rank cannot finalize MPI, so that the others must not.
  void Refuse() { segment_->SettleEnd(false); }

 private:
  bool AllHaveLeft() const;
  std::optional<Absent> FindAbsent(bool all_left) const;

  ShmSegment* const segment_;
  const int count_;
  const int own_;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_LIVENESS_FINALIZE_BARRIER_H_
