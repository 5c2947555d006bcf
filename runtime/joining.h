// Joining: from what Python passes to init to a runtime that has a place in the
// job. One thread at a time.
#ifndef TF_HVD_RUNTIME_JOINING_H_
#define TF_HVD_RUNTIME_JOINING_H_

#include <memory>

#include "runtime/c_api.h"
#include "runtime/runtime.h"
#include "runtime/status.h"
#include "runtime/transport/mpi_session.h"

namespace tf_hvd {

// Waits for the job's other ranks. `mpi` stays empty without MPI.
Status JoinJob(const tf_hvd_init_options& given,
               std::shared_ptr<Runtime>* runtime, MpiInfo* mpi);

// The MPI that JoinJob would start with these options, opened and no more.
Status FindMpi(const tf_hvd_init_options& given, MpiInfo* mpi);

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_JOINING_H_
