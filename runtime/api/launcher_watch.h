// LauncherWatch: ends a rank when its launcher has died. If mpirun and its
// daemons are killed (a scheduler's hard kill, kill -9 of their process group),
// no other process ends the ranks, which would train indefinitely. Slurm keeps
// the ranks of a killed srun until the end of the allocation. This class ends
// those on srun's machine; the other ranks end when they detect the loss.
//
// It serves the ranks of a plain mpirun or srun. Ranks of `tf_hvd run` have a
// keeper for this (tf_hvd/launch/machine/keeper.py), and watch the keeper,
// which may be killed together with the launcher.
#ifndef TF_HVD_RUNTIME_API_LAUNCHER_WATCH_H_
#define TF_HVD_RUNTIME_API_LAUNCHER_WATCH_H_

#include <cstdint>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/config.h"
#include "base/latch.h"
#include "base/processes.h"

namespace tf_hvd {

class LauncherWatch {
 public:
  // Interval of the checks, and time from SIGTERM to SIGKILL.
  static constexpr int64_t kLookNs = kSecond;
  static constexpr int64_t kGraceNs = 5 * kSecond;

  // Watches the nearest launcher or keeper above this process. Does nothing if
  // none is visible.
  explicit LauncherWatch(const LaunchInfo& launch);
  // The rank has left the job: it may continue without a launcher.
  ~LauncherWatch();

  LauncherWatch(const LauncherWatch&) = delete;
  LauncherWatch& operator=(const LauncherWatch&) = delete;

 private:
  void Watch();
  // A description of the lost process; empty if it is alive.
  std::string Gone() const;
  // Removes MPI's shared memory, and ends this process and its descendants:
  // first by SIGTERM, so that they can save their state, and later by SIGKILL.
  void End(const std::string& gone);

  const std::string who_;  // "rank 1"
  // Written before the thread starts.
  Process launcher_;
  int srun_port_ = 0;  // srun's port on this machine; 0: not on this machine
  Latch over_;         // the rank has left the job
  std::thread thread_;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_API_LAUNCHER_WATCH_H_
