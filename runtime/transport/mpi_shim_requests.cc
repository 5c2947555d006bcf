// The part of a shim (mpi_shim.cc) that makes and ends requests: messages, and
// collectives that do not wait.
#include <mpi.h>

#include "runtime/transport/mpi_shim_calls.h"

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

int Iallreduce(void* state, const void* input, void* output, int count,
               MpiNumber type, MpiReduction op, MpiHandle comm,
               MpiHandle* request) {
  const Calls& calls = Of(state);
  MPI_Request value;
  const int error = calls.iallreduce(
      input == nullptr ? MPI_IN_PLACE : input, output, count,
      calls.types[static_cast<int>(type)], calls.ops[static_cast<int>(op)],
      In<MPI_Comm>(comm), &value);
  if (error == MPI_SUCCESS) Out(value, request);
  return error;
}

int IreduceScatterBlock(void* state, void* data, int count, MpiNumber type,
                        MpiReduction op, MpiHandle comm, MpiHandle* request) {
  const Calls& calls = Of(state);
  MPI_Request value;
  const int error = calls.ireduce_scatter_block(
      MPI_IN_PLACE, data, count, calls.types[static_cast<int>(type)],
      calls.ops[static_cast<int>(op)], In<MPI_Comm>(comm), &value);
  if (error == MPI_SUCCESS) Out(value, request);
  return error;
}

int Iallgather(void* state, const void* mine, void* all, int bytes,
               MpiHandle comm, MpiHandle* request) {
  const Calls& calls = Of(state);
  MPI_Request value;
  const int error =
      calls.iallgather(mine == nullptr ? MPI_IN_PLACE : mine, bytes, calls.byte,
                       all, bytes, calls.byte, In<MPI_Comm>(comm), &value);
  if (error == MPI_SUCCESS) Out(value, request);
  return error;
}

int Ibroadcast(void* state, void* data, int bytes, int root, MpiHandle comm,
               MpiHandle* request) {
  const Calls& calls = Of(state);
  MPI_Request value;
  const int error =
      calls.ibcast(data, bytes, calls.byte, root, In<MPI_Comm>(comm), &value);
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
  api->iallreduce = Iallreduce;
  api->ireduce_scatter_block = IreduceScatterBlock;
  api->iallgather = Iallgather;
  api->ibroadcast = Ibroadcast;
  api->test = Test;
  api->cancel = Cancel;
}

}  // namespace tf_hvd
