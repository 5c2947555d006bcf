// FinalizeBarrier: decides whether the ranks on a node finalize MPI together.
// MPI_Finalize waits for all ranks, without a limit, and a stopped rank never
// arrives. So MPI_Finalize is called only when all ranks of the node have
// arrived and are running.
//
// Ranks of other nodes are not checked: MPI_Finalize waits for them.
#ifndef TF_HVD_RUNTIME_TRANSPORT_LIVENESS_FINALIZE_BARRIER_H_
#define TF_HVD_RUNTIME_TRANSPORT_LIVENESS_FINALIZE_BARRIER_H_

#include <cstdint>
#include <optional>

#include "base/clock.h"
#include "runtime/transport/segment/segment.h"

namespace tf_hvd {

// The state of a rank's process. A process that is not visible (in another
// container) counts as running.
enum class Life { kRuns, kStopped, kGone };
Life LifeOf(const ShmSegment& segment, int local_rank);

class FinalizeBarrier {
 public:
  // How long a rank may be stopped, for example in a debugger.
  static constexpr int64_t kPatienceNs = 5 * kSecond;

  // The rank that keeps the others from finalizing.
  struct Absent {
    int local_rank = 0;
    Life life = Life::kRuns;
  };

  // `segment` outlives this object; `count` ranks on the node, this rank is
  // `own`.
  FinalizeBarrier(ShmSegment* segment, int count, int own)
      : segment_(segment), count_(count), own_(own) {}

  // After MarkLeft. True when all ranks have arrived: MPI may be finalized.
  // False if a rank will not arrive, or has refused; the rank that detects this
  // fills `absent`. Waits for a running rank as long as it works.
  bool Wait(std::optional<Absent>* absent);

  // This rank cannot finalize MPI, so the other ranks must not do so either.
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
