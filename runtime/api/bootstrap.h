// Bootstrap: from the options of init to a runtime that has a place in the job.
// One thread at a time.
#ifndef TF_HVD_RUNTIME_API_BOOTSTRAP_H_
#define TF_HVD_RUNTIME_API_BOOTSTRAP_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "runtime/api/launcher_watch.h"
#include "runtime/api/runtime.h"
#include "runtime/transport/mpi/session.h"
#include "runtime/transport/mpi/world.h"

namespace tf_hvd {

// A place in a job.
struct StartedJob {
  std::shared_ptr<Runtime> runtime;
  MpiInfo mpi;                              // empty without MPI
  std::unique_ptr<LauncherWatch> launcher;  // empty without one
};

// Waits for the job's other ranks. `options`: all but what the environment
// says, which is read here. `sets`: as for AgreeOnSets.
Status StartJob(WorldOptions options, std::vector<int32_t> sets,
                StartedJob* job);

// The MPI that StartJob would start with these options, opened and no more.
Status FindMpi(WorldOptions options, MpiInfo* mpi);

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_API_BOOTSTRAP_H_
