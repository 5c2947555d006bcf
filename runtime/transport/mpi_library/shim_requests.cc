// The part of a shim (shim.cc) that starts and ends requests: messages.
#include <mpi.h>

#include "runtime/transport/mpi_library/shim_calls.h"

namespace tf_hvd {
namespace {

int Isend(void* state, const void* data, int bytes, int peer, int tag,
          MpiHandle comm, MpiHandle* request) {
  const Calls& calls = Of(state);
  MPI_Request value;
  const int error = calls.isend(data, bytes, calls.byte, peer, tag,
                                In<MPI_Comm>(comm), &value);
  if (error == MPI_SUCCESS) Out(value, request);
  return error;
}

int Irecv(void* state, void* data, int bytes, int peer, int tag, MpiHandle comm,
          MpiHandle* request) {
  const Calls& calls = Of(state);
  MPI_Request value;
  const int error = calls.irecv(data, bytes, calls.byte, peer, tag,
                                In<MPI_Comm>(comm), &value);
  if (error == MPI_SUCCESS) Out(value, request);
  return error;
}

int Test(void* state, MpiHandle* request, int* done, int* bytes) {
  const Calls& calls = Of(state);
  MPI_Request value = In<MPI_Request>(*request);
  MPI_Status status;
  const int error = calls.test(&value, done, &status);
  Out(value, request);
  if (error != MPI_SUCCESS || *done == 0 || bytes == nullptr) return error;
  return calls.get_count(&status, calls.byte, bytes);
}

int Cancel(void* state, MpiHandle* request) {
  MPI_Request value = In<MPI_Request>(*request);
  return Of(state).cancel(&value);
}

}  // namespace

void FillRequests(MpiApi* api) {
  api->isend = Isend;
  api->irecv = Irecv;
  api->test = Test;
  api->cancel = Cancel;
}

}  // namespace tf_hvd
