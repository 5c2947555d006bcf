// One MPI family behind the neutral table. Compiled once against each family's
// mpi.h into a separate shared object, which links no MPI. Every function is
// looked up in the library passed in, and so are the objects behind Open MPI's
// handles, because its macros for them would require linking.
#include <mpi.h>

#include <cstdio>

#include "base/shared_library.h"
#include "runtime/transport/mpi_library/api.h"
#include "runtime/transport/mpi_library/shim_calls.h"

namespace tf_hvd {
namespace {

int ThreadsIn(MpiThreads level) {
  switch (level) {
    case MpiThreads::kSingle:
      return MPI_THREAD_SINGLE;
    case MpiThreads::kFunneled:
      return MPI_THREAD_FUNNELED;
    case MpiThreads::kSerialized:
      return MPI_THREAD_SERIALIZED;
    case MpiThreads::kMultiple:
      break;
  }
  return MPI_THREAD_MULTIPLE;
}

MpiThreads ThreadsOut(int level) {
  if (level == MPI_THREAD_MULTIPLE) return MpiThreads::kMultiple;
  if (level == MPI_THREAD_SERIALIZED) return MpiThreads::kSerialized;
  if (level == MPI_THREAD_FUNNELED) return MpiThreads::kFunneled;
  return MpiThreads::kSingle;
}

int Finalized(void* state, int* flag) { return Of(state).finalized(flag); }

int InitThread(void* state, MpiThreads wanted, MpiThreads* provided) {
  int level = MPI_THREAD_SINGLE;
  const int error =
      Of(state).init_thread(nullptr, nullptr, ThreadsIn(wanted), &level);
  *provided = ThreadsOut(level);
  return error;
}

int QueryThread(void* state, MpiThreads* provided) {
  int level = MPI_THREAD_SINGLE;
  const int error = Of(state).query_thread(&level);
  *provided = ThreadsOut(level);
  return error;
}

int Finalize(void* state) { return Of(state).finalize(); }

int LibraryVersion(void* state, char* text) {
  static_assert(MPI_MAX_LIBRARY_VERSION_STRING <= 8192, "raise the contract");
  int length = 0;
  text[0] = '\0';
  return Of(state).library_version(text, &length);
}

int ProcessorName(void* state, char* text) {
  static_assert(MPI_MAX_PROCESSOR_NAME <= 512, "raise the contract");
  int length = 0;
  text[0] = '\0';
  return Of(state).processor_name(text, &length);
}

int ErrorString(void* state, int error, char* text) {
  static_assert(MPI_MAX_ERROR_STRING <= 8192, "raise the contract");
  int length = 0;
  text[0] = '\0';
  return Of(state).error_string(error, text, &length);
}

int CudaAware(void* state) {
  constexpr int kCuda = 0;  // MPIX_GPU_SUPPORT_CUDA
  const Calls& calls = Of(state);
  if (calls.query_cuda != nullptr) return calls.query_cuda() == 1 ? 1 : 0;
  int is_supported = 0;
  if (calls.query_gpu == nullptr) return 0;
  const int error = calls.query_gpu(kCuda, &is_supported);
  return error == MPI_SUCCESS && is_supported != 0 ? 1 : 0;
}

int Dup(void* state, MpiHandle comm, MpiHandle* copy) {
  const Calls& calls = Of(state);
  MPI_Comm made;
  const int error = calls.comm_dup(In<MPI_Comm>(comm), &made);
  if (error != MPI_SUCCESS) return error;
  Out(made, copy);
  return calls.set_errhandler(made, calls.errors_return);
}

int FromRanks(void* state, const int* ranks, int count, MpiHandle* comm) {
  constexpr int kTag = 0;  // no other thread makes a communicator at init
  const Calls& calls = Of(state);
  MPI_Group world;
  int error = calls.comm_group(calls.world, &world);
  if (error != MPI_SUCCESS) return error;
  MPI_Group group;
  error = calls.group_incl(world, count, ranks, &group);
  calls.group_free(&world);
  if (error != MPI_SUCCESS) return error;
  MPI_Comm made;
  error = calls.create_group(calls.world, group, kTag, &made);
  calls.group_free(&group);
  if (error != MPI_SUCCESS) return error;
  Out(made, comm);
  return calls.set_errhandler(made, calls.errors_return);
}

int FromFortran(void* state, int fortran, MpiHandle* comm) {
  Out(Of(state).comm_f2c(static_cast<MPI_Fint>(fortran)), comm);
  return MPI_SUCCESS;
}

#ifdef MPI_Comm_f2c  // MPICH has no such function: its handles equal Fortran's
MPI_Comm CommOfFortran(MPI_Fint fortran) { return MPI_Comm_f2c(fortran); }
#endif

int CommRank(void* state, MpiHandle comm, int* rank) {
  return Of(state).comm_rank(In<MPI_Comm>(comm), rank);
}

int CommSize(void* state, MpiHandle comm, int* size) {
  return Of(state).comm_size(In<MPI_Comm>(comm), size);
}

int SplitShared(void* state, MpiHandle comm, MpiHandle* node) {
  const Calls& calls = Of(state);
  MPI_Comm part;
  const int error = calls.split_type(In<MPI_Comm>(comm), MPI_COMM_TYPE_SHARED,
                                     0, calls.info_null, &part);
  if (error == MPI_SUCCESS) Out(part, node);
  return error;
}

int Split(void* state, MpiHandle comm, int color, MpiHandle* part) {
  MPI_Comm result;
  const int error = Of(state).split(In<MPI_Comm>(comm), color, 0, &result);
  if (error == MPI_SUCCESS) Out(result, part);
  return error;
}

int CommFree(void* state, MpiHandle* comm) {
  MPI_Comm value = In<MPI_Comm>(*comm);
  const int error = Of(state).comm_free(&value);
  Out(value, comm);
  return error;
}

int Allgather(void* state, const void* mine, int bytes, void* all,
              MpiHandle comm) {
  const Calls& calls = Of(state);
  return calls.allgather(mine, bytes, calls.byte, all, bytes, calls.byte,
                         In<MPI_Comm>(comm));
}

int Broadcast(void* state, void* data, int bytes, int root, MpiHandle comm) {
  const Calls& calls = Of(state);
  return calls.bcast(data, bytes, calls.byte, root, In<MPI_Comm>(comm));
}

void LoadFunctions(Symbols* symbols, Calls* calls) {
#define TF_HVD_FIND(name, member) symbols->Find(#name, &calls->member);
  TF_HVD_MPI_CALLS(TF_HVD_FIND)
#undef TF_HVD_FIND
#ifdef MPI_Comm_f2c
  calls->comm_f2c = CommOfFortran;
#else
  symbols->Find("MPI_Comm_f2c", &calls->comm_f2c);
#endif
  symbols->FindExtension("MPIX_Query_cuda_support", &calls->query_cuda);
  symbols->FindExtension("MPIX_GPU_query_support", &calls->query_gpu);
}

void LoadHandles(Symbols* symbols, Calls* calls) {
#ifdef OPEN_MPI
  calls->world = static_cast<MPI_Comm>(symbols->Address("ompi_mpi_comm_world"));
  calls->byte = static_cast<MPI_Datatype>(symbols->Address("ompi_mpi_byte"));
  calls->info_null =
      static_cast<MPI_Info>(symbols->Address("ompi_mpi_info_null"));
  calls->errors_return =
      static_cast<MPI_Errhandler>(symbols->Address("ompi_mpi_errors_return"));
#else
  static_cast<void>(symbols);
  calls->world = MPI_COMM_WORLD;
  calls->byte = MPI_BYTE;
  calls->info_null = MPI_INFO_NULL;
  calls->errors_return = MPI_ERRORS_RETURN;
#endif
}

void FillTable(Calls* calls, MpiApi* api) {
  api->state = calls;
  api->any_source = MPI_ANY_SOURCE;
  Out(calls->world, &api->world);
  api->finalized = Finalized;
  api->init_thread = InitThread;
  api->query_thread = QueryThread;
  api->finalize = Finalize;
  api->library_version = LibraryVersion;
  api->processor_name = ProcessorName;
  api->error_string = ErrorString;
  api->cuda_aware = CudaAware;
  api->dup = Dup;
  api->from_ranks = FromRanks;
  api->from_fortran = FromFortran;
  api->comm_rank = CommRank;
  api->comm_size = CommSize;
  api->split_shared = SplitShared;
  api->split = Split;
  api->comm_free = CommFree;
  api->allgather = Allgather;
  api->broadcast = Broadcast;
  FillRequests(api);
}

}  // namespace
}  // namespace tf_hvd

extern "C" __attribute__((visibility("default"))) int tf_hvd_mpi_load(
    void* libmpi, tf_hvd::MpiApi* api, char* error, size_t error_bytes) {
  tf_hvd::Symbols symbols(libmpi);
  auto* calls = new tf_hvd::Calls();
  tf_hvd::LoadFunctions(&symbols, calls);
  tf_hvd::LoadHandles(&symbols, calls);
  if (symbols.missing() != nullptr) {
    std::snprintf(error, error_bytes, "symbol %s is missing",
                  symbols.missing());
    delete calls;
    return 1;
  }
  tf_hvd::FillTable(calls, api);
  return 0;
}
