// Bootstrap: starts a runtime that is a member of the job, from the options of
// init. One thread at a time.
#ifndef TF_HVD_RUNTIME_API_BOOTSTRAP_H_
#define TF_HVD_RUNTIME_API_BOOTSTRAP_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "base/main_thread.h"
#include "base/status.h"
#include "runtime/api/launcher_watch.h"
#include "runtime/api/runtime.h"
#include "runtime/transport/mpi/session.h"
#include "runtime/transport/mpi/world.h"

namespace tf_hvd {

// A started job and this rank's membership in it.
struct StartedJob {
  std::shared_ptr<Runtime> runtime;
  MpiInfo mpi;                              // empty without MPI
  std::unique_ptr<LauncherWatch> launcher;  // null if no launcher is watched
};

// A job's options, besides those of its world.
struct JobOptions {
  std::vector<int32_t> sets;          // as for AgreeOnSets
  MainThread* main_thread = nullptr;  // as for MakeRuntime
  // For tests: divides all time limits of waits, except init's.
  int hurry = 1;
};

// Waits for the job's other ranks. `options`: everything except the settings
// from the environment, which are read here.
Status StartJob(WorldOptions options, const JobOptions& job_options,
                StartedJob* job);

// Loads the MPI that StartJob would use with these options, without starting
// it.
Status FindMpi(WorldOptions options, MpiInfo* mpi);

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_API_BOOTSTRAP_H_
