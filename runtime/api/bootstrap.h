// Joining: from what Python passes to init to a runtime that has a place in the
// job. One thread at a time.
#ifndef TF_HVD_RUNTIME_API_BOOTSTRAP_H_
#define TF_HVD_RUNTIME_API_BOOTSTRAP_H_

#include <memory>

#include "runtime/api/c_api.h"
#include "runtime/api/launcher_watch.h"
#include "runtime/api/runtime.h"
#include "runtime/base/status.h"
#include "runtime/transport/mpi/session.h"

namespace tf_hvd {

// A place in a job.
struct Joined {
  std::shared_ptr<Runtime> runtime;
  MpiInfo mpi;                              // empty without MPI
  std::unique_ptr<LauncherWatch> launcher;  // empty without one
};

// Waits for the job's other ranks.
Status JoinJob(const tf_hvd_init_options& given, Joined* joined);

// The MPI that JoinJob would start with these options, opened and no more.
Status FindMpi(const tf_hvd_init_options& given, MpiInfo* mpi);

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_API_BOOTSTRAP_H_
