#include "runtime/transport/liveness/finalize_barrier.h"

#include <algorithm>
#include <thread>

#include "runtime/base/processes.h"

namespace tf_hvd {
namespace {

using Clock = std::chrono::steady_clock;

// Ranks end within a moment of each other, or one of them has work to do.
constexpr std::chrono::microseconds kFirstPause{100};
constexpr std::chrono::microseconds kLongestPause{20'000};
// Between two looks at the processes.
constexpr std::chrono::milliseconds kLookEvery{250};

}  // namespace

Life LifeOf(const ShmSegment& segment, int local_rank) {
  const std::optional<pid_t> holder = segment.HolderOf(local_rank);
  if (!holder.has_value()) return Life::kGone;
  if (*holder <= 0) return Life::kRuns;
  const std::optional<Process> process = FindProcess(*holder);
  return process.has_value() && process->stopped ? Life::kStopped : Life::kRuns;
}

// What has been settled counts, whoever did it first: a rank that is in
// MPI_Finalize cannot be called back.
bool FinalizeBarrier::Wait(std::optional<Absent>* absent) {
  Clock::duration pause = kFirstPause;
  Clock::time_point next_look{};
  // Looks and no time: it passes also while all ranks of the job are stopped.
  int stopped_looks = 0;
  while (true) {
    if (const auto settled = segment_->settled_end()) return *settled;
    const bool all_left = AllHaveLeft();
    if (Clock::now() >= next_look) {
      next_look = Clock::now() + kLookEvery;
      const std::optional<Absent> found = FindAbsent(all_left);
      if (!found && all_left) return segment_->SettleEnd(true);
      const bool stopped = found && found->life == Life::kStopped;
      stopped_looks = stopped ? stopped_looks + 1 : 0;
      if (found && (!stopped || stopped_looks > kPatience / kLookEvery)) {
        const bool together = segment_->SettleEnd(false);
        if (!together) *absent = found;
        return together;
      }
    }
    std::this_thread::sleep_for(pause);
    pause = std::min<Clock::duration>(2 * pause, kLongestPause);
    // The last one has come: no need to wait for the next look.
    if (!all_left && AllHaveLeft()) next_look = Clock::time_point{};
  }
}

bool FinalizeBarrier::AllHaveLeft() const {
  for (int rank = 0; rank < count_; ++rank) {
    if (!segment_->HasLeft(rank)) return false;
  }
  return true;
}

// Those that have come are looked at when all have: they wait as well, and
// many of them would look at each other.
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
