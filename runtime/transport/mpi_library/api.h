// MpiApi: the table of the MPI functions that tf_hvd calls, in types that do
// not depend on an mpi.h. A shim (shim.cc), compiled once against each ABI
// family, fills it from the library found at run time; tests fill it with a
// mock.
//
// Functions return 0 (MPI_SUCCESS in every family) or the library's error code,
// which error_string describes. One of tf_hvd's threads at a time calls them;
// other threads of the process may call MPI concurrently.
#ifndef TF_HVD_RUNTIME_TRANSPORT_MPI_LIBRARY_API_H_
#define TF_HVD_RUNTIME_TRANSPORT_MPI_LIBRARY_API_H_

#include <cstddef>

namespace tf_hvd {

// A communicator or request: a pointer in Open MPI, a number in MPICH.
union MpiHandle {
  void* pointer;
  int number;
};

// In increasing order of permission.
enum class MpiThreads : int {
  kSingle = 0,
  kFunneled = 1,
  kSerialized = 2,
  kMultiple = 3,
};

struct MpiApi {
  void* state = nullptr;  // first argument of every function
  int any_source = 0;     // MPI_ANY_SOURCE
  MpiHandle world{nullptr};

  int (*finalized)(void* state, int* flag) = nullptr;
  int (*init_thread)(void* state, MpiThreads wanted,
                     MpiThreads* provided) = nullptr;
  int (*query_thread)(void* state, MpiThreads* provided) = nullptr;
  int (*finalize)(void* state) = nullptr;
  // `text` holds at least 8192 bytes and is always terminated.
  int (*library_version)(void* state, char* text) = nullptr;
  // `text` holds at least 512 bytes and is always terminated.
  int (*processor_name)(void* state, char* text) = nullptr;
  int (*error_string)(void* state, int error, char* text) = nullptr;
  // 1 if the library reports that it accesses GPU memory directly ("CUDA-
  // aware"); 0 if not, or if it reports nothing. Only when initialised.
  int (*cuda_aware)(void* state) = nullptr;

  // A copy of a communicator that returns errors. Collective.
  int (*dup)(void* state, MpiHandle comm, MpiHandle* copy) = nullptr;
  // A communicator of these ranks of MPI_COMM_WORLD, in this order, that
  // returns errors (MPI_Comm_create_group). Collective over these ranks.
  int (*from_ranks)(void* state, const int* ranks, int count,
                    MpiHandle* comm) = nullptr;
  // The communicator behind a Fortran handle (MPI_Comm_f2c), not a copy.
  int (*from_fortran)(void* state, int fortran, MpiHandle* comm) = nullptr;
  int (*comm_rank)(void* state, MpiHandle comm, int* rank) = nullptr;
  int (*comm_size)(void* state, MpiHandle comm, int* size) = nullptr;
  // MPI_Comm_split_type(MPI_COMM_TYPE_SHARED), in the order of ranks.
  int (*split_shared)(void* state, MpiHandle comm, MpiHandle* node) = nullptr;
  int (*split)(void* state, MpiHandle comm, int color,
               MpiHandle* part) = nullptr;
  int (*comm_free)(void* state, MpiHandle* comm) = nullptr;

  // `bytes` per rank. At init only, because it waits for the other ranks.
  int (*allgather)(void* state, const void* mine, int bytes, void* all,
                   MpiHandle comm) = nullptr;
  int (*broadcast)(void* state, void* data, int bytes, int root,
                   MpiHandle comm) = nullptr;

  // Lengths in bytes. A completed request is invalid.
  int (*isend)(void* state, const void* data, int bytes, int peer, int tag,
               MpiHandle comm, MpiHandle* request) = nullptr;
  int (*irecv)(void* state, void* data, int bytes, int peer, int tag,
               MpiHandle comm, MpiHandle* request) = nullptr;
  // `bytes` may be null; for a receive: the number of bytes received.
  int (*test)(void* state, MpiHandle* request, int* done, int* bytes) = nullptr;
  // Afterwards the request must still be tested until it is done.
  int (*cancel)(void* state, MpiHandle* request) = nullptr;
};

// The type of a shim's exported tf_hvd_mpi_load: fills `api` from the loaded
// library. Returns 0, or 1 with the reason in `error`.
using MpiLoadFunction = int (*)(void* libmpi, MpiApi* api, char* error,
                                size_t error_bytes);

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_MPI_LIBRARY_API_H_
