#include "runtime/transport/liveness/finalize_barrier.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/processes.h"

namespace tf_hvd {
namespace {

// Either the ranks end within a moment of each other, or one of them has work
// to do.
constexpr int64_t kFirstPauseNs = 100 * kUs;
constexpr int64_t kLongestPauseNs = 20 * kMs;
// Interval of the checks of the processes.
constexpr int64_t kLookNs = 250 * kMs;

}  // namespace

Life LifeOf(const ShmSegment& segment, int local_rank) {
  const std::optional<pid_t> holder = segment.HolderOf(local_rank);
  if (!holder.has_value()) return Life::kGone;
  if (*holder <= 0) return Life::kRuns;
  const std::optional<Process> process = FindProcess(*holder);
  return process.has_value() && process->stopped ? Life::kStopped : Life::kRuns;
}

// The first decision counts, whichever rank made it: a rank in MPI_Finalize
// cannot be called back.
bool FinalizeBarrier::Wait(std::optional<Absent>* absent) {
  int64_t pause_ns = kFirstPauseNs;
  int64_t next_look_ns = 0;
  // Counts checks instead of time, which also passes while all ranks of the job
  // are stopped.
  int stopped_looks = 0;
  while (true) {
    if (const auto settled = segment_->settled_end()) return *settled;
    const bool all_left = AllHaveLeft();
    if (const int64_t now_ns = NowNs(); now_ns >= next_look_ns) {
      next_look_ns = now_ns + kLookNs;
      const std::optional<Absent> found = FindAbsent(all_left);
      if (!found && all_left) return segment_->SettleEnd(true);
      const bool stopped = found && found->life == Life::kStopped;
      stopped_looks = stopped ? stopped_looks + 1 : 0;
      if (found && (!stopped || stopped_looks > kPatienceNs / kLookNs)) {
        const bool together = segment_->SettleEnd(false);
        if (!together) *absent = found;
        return together;
      }
    }
    std::this_thread::sleep_for(std::chrono::nanoseconds(pause_ns));
    pause_ns = std::min(2 * pause_ns, kLongestPauseNs);
    // The last rank has arrived: check immediately.
    if (!all_left && AllHaveLeft()) next_look_ns = 0;
  }
}

bool FinalizeBarrier::AllHaveLeft() const {
  for (int rank = 0; rank < count_; ++rank) {
    if (!segment_->HasLeft(rank)) return false;
  }
  return true;
}

// Ranks that have arrived are checked only when all have: they wait as well,
// and many of them would check each other.
std::optional<FinalizeBarrier::Absent> FinalizeBarrier::FindAbsent(
    bool all_left) const {
  std::optional<Absent> found;
  for (int rank = 0; rank < count_; ++rank) {
    if (rank == own_ || (!all_left && segment_->HasLeft(rank))) continue;
    const Life life = LifeOf(*segment_, rank);
    if (life == Life::kRuns) continue;
    if (!found || life == Life::kGone) found = Absent{rank, life};
  }
  return found;
}

}  // namespace tf_hvd
