// Shared by the parts of a shim: the functions and objects of the loaded
// library, and conversion of handles. Used only by shim*.cc.
#ifndef TF_HVD_RUNTIME_TRANSPORT_MPI_LIBRARY_SHIM_CALLS_H_
#define TF_HVD_RUNTIME_TRANSPORT_MPI_LIBRARY_SHIM_CALLS_H_

#include <mpi.h>

#include <cstring>

#include "runtime/transport/mpi_library/api.h"

namespace tf_hvd {

// Functions that every library has: its name, and the name in `Calls`.
#define TF_HVD_MPI_CALLS(CALL)                   \
  CALL(MPI_Finalized, finalized)                 \
  CALL(MPI_Init_thread, init_thread)             \
  CALL(MPI_Query_thread, query_thread)           \
  CALL(MPI_Finalize, finalize)                   \
  CALL(MPI_Get_library_version, library_version) \
  CALL(MPI_Get_processor_name, processor_name)   \
  CALL(MPI_Error_string, error_string)           \
  CALL(MPI_Comm_dup, comm_dup)                   \
  CALL(MPI_Comm_group, comm_group)               \
  CALL(MPI_Group_incl, group_incl)               \
  CALL(MPI_Group_free, group_free)               \
  CALL(MPI_Comm_create_group, create_group)      \
  CALL(MPI_Comm_set_errhandler, set_errhandler)  \
  CALL(MPI_Comm_rank, comm_rank)                 \
  CALL(MPI_Comm_size, comm_size)                 \
  CALL(MPI_Comm_split_type, split_type)          \
  CALL(MPI_Comm_split, split)                    \
  CALL(MPI_Comm_free, comm_free)                 \
  CALL(MPI_Allgather, allgather)                 \
  CALL(MPI_Bcast, bcast)                         \
  CALL(MPI_Isend, isend)                         \
  CALL(MPI_Irecv, irecv)                         \
  CALL(MPI_Test, test)                           \
  CALL(MPI_Get_count, get_count)                 \
  CALL(MPI_Cancel, cancel)

// The functions of one loaded library. Never destroyed, as the library is never
// unloaded.
struct Calls {
// NOLINTNEXTLINE(bugprone-macro-parentheses): names, not values.
#define TF_HVD_MEMBER(name, member) decltype(&name) member = nullptr;
  TF_HVD_MPI_CALLS(TF_HVD_MEMBER)
#undef TF_HVD_MEMBER
  MPI_Comm (*comm_f2c)(MPI_Fint) = nullptr;

  // Extensions; null if the library lacks them. Open MPI and its derivatives
  // have the first, MPICH and its derivatives the second.
  int (*query_cuda)() = nullptr;
  int (*query_gpu)(int kind, int* is_supported) = nullptr;

  MPI_Comm world;
  MPI_Datatype byte;
  MPI_Info info_null;
  MPI_Errhandler errors_return;
};

inline const Calls& Of(void* state) { return *static_cast<Calls*>(state); }

// Handles are ints or pointers; both are stored in the union's bytes.
template <typename T>
T In(const MpiHandle& handle) {
  static_assert(sizeof(T) <= sizeof(MpiHandle), "no room for a handle");
  T value;
  std::memcpy(&value, &handle, sizeof(T));
  return value;
}

template <typename T>
void Out(const T& value, MpiHandle* handle) {
  *handle = MpiHandle{nullptr};
  std::memcpy(handle, &value, sizeof(T));
}

// Fills in the functions that start and end requests.
void FillRequests(MpiApi* api);

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_MPI_LIBRARY_SHIM_CALLS_H_
