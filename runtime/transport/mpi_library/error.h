// An MPI call's error code as a Status.
#ifndef TF_HVD_RUNTIME_TRANSPORT_MPI_LIBRARY_ERROR_H_
#define TF_HVD_RUNTIME_TRANSPORT_MPI_LIBRARY_ERROR_H_

#include "runtime/base/status.h"
#include "runtime/transport/mpi_library/api.h"

namespace tf_hvd {

// Ok for 0; else Aborted, with the name of the call and MPI's own words.
Status MpiResult(const MpiApi& api, const char* call, int code);

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_MPI_LIBRARY_ERROR_H_
