// NcclApi: the table of NCCL's functions that tf_hvd calls, in types that do
// not need nccl.h. libraries.cc fills it from the library found at run time;
// tests fill it with a software NCCL (tests/gpu/).
//
// The names are NCCL's without "nccl"; for their behaviour see NCCL's
// documentation. Communicators are non-blocking: a function may return
// kNcclInProgress. comm_get_async_error then shows when it has ended; until
// then no other call on that communicator is allowed.
//
// Called by one of tf_hvd's threads at a time.
#ifndef TF_HVD_RUNTIME_TRANSPORT_GPU_NCCL_API_H_
#define TF_HVD_RUNTIME_TRANSPORT_GPU_NCCL_API_H_

#include <cstddef>
#include <limits>

#include "runtime/transport/gpu/cuda_api.h"

// The type behind NCCL's handle, with nccl.h's name.
struct ncclComm;

namespace tf_hvd {

using NcclComm = ncclComm*;

struct NcclUniqueId {
  char bytes[128];
};

// ncclConfig_t of 2.14, the first version with non-blocking communicators. Its
// last four bytes are a member of later versions, which treat the rest as
// undefined.
struct NcclConfig {
  size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = 21400;
  int blocking = 0;
  int undefined = std::numeric_limits<int>::min();  // NCCL_CONFIG_UNDEF_INT
};

inline constexpr int kNcclSuccess = 0;
inline constexpr int kNcclInProgress = 7;
inline constexpr int kNcclOldestVersion = 21400;

// ncclDataType_t
enum class NcclNumber : int {
  kInt8 = 0,
  kUint8 = 1,
  kInt32 = 2,
  kUint32 = 3,
  kInt64 = 4,
  kUint64 = 5,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBfloat16 = 9,
};

// ncclRedOp_t
enum class NcclReduction : int { kSum = 0, kProduct = 1, kMax = 2, kMin = 3 };

struct NcclApi {
  int (*get_version)(int* version) = nullptr;
  int (*get_unique_id)(NcclUniqueId* id) = nullptr;
  int (*comm_init_rank_config)(NcclComm* comm, int ranks, NcclUniqueId id,
                               int rank, NcclConfig* config) = nullptr;
  int (*comm_get_async_error)(NcclComm comm, int* error) = nullptr;
  int (*comm_finalize)(NcclComm comm) = nullptr;
  int (*comm_destroy)(NcclComm comm) = nullptr;
  int (*comm_abort)(NcclComm comm) = nullptr;
  const char* (*get_error_string)(int error) = nullptr;
  // `comm` may be null.
  const char* (*get_last_error)(NcclComm comm) = nullptr;

  int (*all_reduce)(const void* input, void* output, size_t count,
                    NcclNumber type, NcclReduction op, NcclComm comm,
                    CudaStream stream) = nullptr;
  int (*reduce_scatter)(const void* input, void* output, size_t output_count,
                        NcclNumber type, NcclReduction op, NcclComm comm,
                        CudaStream stream) = nullptr;
  int (*all_gather)(const void* input, void* output, size_t input_count,
                    NcclNumber type, NcclComm comm,
                    CudaStream stream) = nullptr;
  int (*broadcast)(const void* input, void* output, size_t count,
                   NcclNumber type, int root, NcclComm comm,
                   CudaStream stream) = nullptr;
  int (*send)(const void* data, size_t count, NcclNumber type, int peer,
              NcclComm comm, CudaStream stream) = nullptr;
  int (*receive)(void* data, size_t count, NcclNumber type, int peer,
                 NcclComm comm, CudaStream stream) = nullptr;
  int (*group_start)() = nullptr;
  int (*group_end)() = nullptr;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_GPU_NCCL_API_H_
