// LauncherWatch: what ends a rank whose launcher is gone. When mpirun and its
// daemons are killed (a scheduler's hard kill, kill -9 of their process group),
// nobody else is left to end its ranks, which would train for ever. Slurm keeps
// the ranks of an srun that is killed until the end of the allocation; those on
// srun's machine end by this, and the others when they miss them.
//
// This is for the ranks of a plain mpirun or srun. Those of `tf_hvd run` have a
// keeper that does it (tf_hvd/launch/machine/keeper.py), and watch the keeper:
// it may be killed together with the launcher.
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
  // Between two looks, and from SIGTERM to SIGKILL.
  static constexpr int64_t kLookNs = kSecond;
  static constexpr int64_t kGraceNs = 5 * kSecond;

  // Watches the nearest launcher or keeper above this process. Without a
  // launcher that can be seen it does nothing.
  explicit LauncherWatch(const LaunchInfo& launch);
  // The rank has left the job: it may go on alone.
  ~LauncherWatch();

  LauncherWatch(const LauncherWatch&) = delete;
  LauncherWatch& operator=(const LauncherWatch&) = delete;

 private:
  void Watch();
  // What is gone, for people; empty while nothing is.
  std::string Gone() const;
  // Removes MPI's shared memory, and ends this process and what it has started:
  // by SIGTERM, so that it may save what it has, and later by SIGKILL.
  void End(const std::string& gone);

  const std::string who_;  // "rank 1"
  // Written before the thread begins.
  Process launcher_;
  int srun_port_ = 0;  // at which it listens on this machine; 0: on none
  Latch over_;         // the rank has left the job
  std::thread thread_;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_API_LAUNCHER_WATCH_H_
