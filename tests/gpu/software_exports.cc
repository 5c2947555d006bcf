// The functions of libcuda and libnccl that tf_hvd looks up, made from a
// SoftwareGpu and a SoftwareNccl: a library linked with this may be opened as
// either.
#include "tests/gpu/software_gpu.h"
#include "tests/gpu/software_nccl.h"

using tf_hvd::CudaContext;
using tf_hvd::CudaEvent;
using tf_hvd::CudaFunction;
using tf_hvd::CudaModule;
using tf_hvd::CudaPointer;
using tf_hvd::CudaStream;
using tf_hvd::CudaUuid;
using tf_hvd::NcclComm;
using tf_hvd::NcclConfig;
using tf_hvd::NcclNumber;
using tf_hvd::NcclReduction;
using tf_hvd::NcclUniqueId;
using tf_hvd::SoftwareGpu;
using tf_hvd::SoftwareNccl;

#define TF_HVD_EXPORT_OF(type, table, name, member, parameters, arguments) \
  extern "C" __attribute__((visibility("default"))) type name parameters { \
    return table->member arguments;                                        \
  }
#define TF_HVD_EXPORT(name, member, parameters, arguments)             \
  TF_HVD_EXPORT_OF(int, SoftwareGpu::Cuda(), name, member, parameters, \
                   arguments)
#define TF_HVD_EXPORT_NCCL(name, member, parameters, arguments)        \
  TF_HVD_EXPORT_OF(int, SoftwareNccl::Api(), name, member, parameters, \
                   arguments)

TF_HVD_EXPORT(cuInit, init, (unsigned a), (a))
TF_HVD_EXPORT(cuDriverGetVersion, driver_get_version, (int* a), (a))
TF_HVD_EXPORT(cuGetErrorName, get_error_name, (int a, const char** b), (a, b))
TF_HVD_EXPORT(cuGetErrorString, get_error_string, (int a, const char** b),
              (a, b))
TF_HVD_EXPORT(cuDeviceGetCount, device_get_count, (int* a), (a))
TF_HVD_EXPORT(cuDeviceGet, device_get, (int* a, int b), (a, b))
TF_HVD_EXPORT(cuDeviceGetName, device_get_name, (char* a, int b, int c),
              (a, b, c))
TF_HVD_EXPORT(cuDeviceGetUuid_v2, device_get_uuid, (CudaUuid * a, int b),
              (a, b))
TF_HVD_EXPORT(cuDeviceGetAttribute, device_get_attribute,
              (int* a, int b, int c), (a, b, c))
TF_HVD_EXPORT(cuDevicePrimaryCtxRetain, device_primary_ctx_retain,
              (CudaContext * a, int b), (a, b))
TF_HVD_EXPORT(cuDevicePrimaryCtxRelease_v2, device_primary_ctx_release, (int a),
              (a))
TF_HVD_EXPORT(cuCtxPushCurrent_v2, ctx_push_current, (CudaContext a), (a))
TF_HVD_EXPORT(cuCtxPopCurrent_v2, ctx_pop_current, (CudaContext * a), (a))
TF_HVD_EXPORT(cuCtxGetDevice, ctx_get_device, (int* a), (a))
TF_HVD_EXPORT(cuCtxGetStreamPriorityRange, ctx_get_stream_priority_range,
              (int* a, int* b), (a, b))
TF_HVD_EXPORT(cuStreamCreateWithPriority, stream_create_with_priority,
              (CudaStream * a, unsigned b, int c), (a, b, c))
TF_HVD_EXPORT(cuStreamDestroy_v2, stream_destroy, (CudaStream a), (a))
TF_HVD_EXPORT(cuStreamGetCtx, stream_get_ctx, (CudaStream a, CudaContext* b),
              (a, b))
TF_HVD_EXPORT(cuStreamWaitEvent, stream_wait_event,
              (CudaStream a, CudaEvent b, unsigned c), (a, b, c))
TF_HVD_EXPORT(cuLaunchHostFunc, launch_host_func,
              (CudaStream a, void (*b)(void*), void* c), (a, b, c))
TF_HVD_EXPORT(cuEventCreate, event_create, (CudaEvent * a, unsigned b), (a, b))
TF_HVD_EXPORT(cuEventDestroy_v2, event_destroy, (CudaEvent a), (a))
TF_HVD_EXPORT(cuEventRecord, event_record, (CudaEvent a, CudaStream b), (a, b))
TF_HVD_EXPORT(cuEventQuery, event_query, (CudaEvent a), (a))
TF_HVD_EXPORT(cuMemAlloc_v2, mem_alloc, (CudaPointer * a, size_t b), (a, b))
TF_HVD_EXPORT(cuMemFree_v2, mem_free, (CudaPointer a), (a))
TF_HVD_EXPORT(cuMemHostAlloc, mem_host_alloc, (void** a, size_t b, unsigned c),
              (a, b, c))
TF_HVD_EXPORT(cuMemFreeHost, mem_free_host, (void* a), (a))
TF_HVD_EXPORT(cuMemcpyAsync, memcpy_async,
              (CudaPointer a, CudaPointer b, size_t c, CudaStream d),
              (a, b, c, d))
TF_HVD_EXPORT(cuMemsetD32Async, memset_d32_async,
              (CudaPointer a, unsigned b, size_t c, CudaStream d), (a, b, c, d))
TF_HVD_EXPORT(cuModuleLoadData, module_load_data,
              (CudaModule * a, const void* b), (a, b))
TF_HVD_EXPORT(cuModuleUnload, module_unload, (CudaModule a), (a))
TF_HVD_EXPORT(cuModuleGetFunction, module_get_function,
              (CudaFunction * a, CudaModule b, const char* c), (a, b, c))
TF_HVD_EXPORT(cuLaunchKernel, launch_kernel,
              (CudaFunction a, unsigned b, unsigned c, unsigned d, unsigned e,
               unsigned f, unsigned g, unsigned h, CudaStream i, void** j,
               void** k),
              (a, b, c, d, e, f, g, h, i, j, k))

TF_HVD_EXPORT_NCCL(ncclGetVersion, get_version, (int* a), (a))
TF_HVD_EXPORT_NCCL(ncclGetUniqueId, get_unique_id, (NcclUniqueId * a), (a))
TF_HVD_EXPORT_NCCL(ncclCommInitRankConfig, comm_init_rank_config,
                   (NcclComm * a, int b, NcclUniqueId c, int d, NcclConfig* e),
                   (a, b, c, d, e))
TF_HVD_EXPORT_NCCL(ncclCommGetAsyncError, comm_get_async_error,
                   (NcclComm a, int* b), (a, b))
TF_HVD_EXPORT_NCCL(ncclCommFinalize, comm_finalize, (NcclComm a), (a))
TF_HVD_EXPORT_NCCL(ncclCommDestroy, comm_destroy, (NcclComm a), (a))
TF_HVD_EXPORT_NCCL(ncclCommAbort, comm_abort, (NcclComm a), (a))
TF_HVD_EXPORT_OF(const char*, SoftwareNccl::Api(), ncclGetErrorString,
                 get_error_string, (int a), (a))
TF_HVD_EXPORT_OF(const char*, SoftwareNccl::Api(), ncclGetLastError,
                 get_last_error, (NcclComm a), (a))
TF_HVD_EXPORT_NCCL(ncclAllReduce, all_reduce,
                   (const void* a, void* b, size_t c, NcclNumber d,
                    NcclReduction e, NcclComm f, CudaStream g),
                   (a, b, c, d, e, f, g))
TF_HVD_EXPORT_NCCL(ncclReduceScatter, reduce_scatter,
                   (const void* a, void* b, size_t c, NcclNumber d,
                    NcclReduction e, NcclComm f, CudaStream g),
                   (a, b, c, d, e, f, g))
TF_HVD_EXPORT_NCCL(ncclAllGather, all_gather,
                   (const void* a, void* b, size_t c, NcclNumber d, NcclComm e,
                    CudaStream f),
                   (a, b, c, d, e, f))
TF_HVD_EXPORT_NCCL(ncclBroadcast, broadcast,
                   (const void* a, void* b, size_t c, NcclNumber d, int e,
                    NcclComm f, CudaStream g),
                   (a, b, c, d, e, f, g))
TF_HVD_EXPORT_NCCL(ncclSend, send,
                   (const void* a, size_t b, NcclNumber c, int d, NcclComm e,
                    CudaStream f),
                   (a, b, c, d, e, f))
TF_HVD_EXPORT_NCCL(ncclRecv, receive,
                   (void* a, size_t b, NcclNumber c, int d, NcclComm e,
                    CudaStream f),
                   (a, b, c, d, e, f))
TF_HVD_EXPORT_NCCL(ncclGroupStart, group_start, (), ())
TF_HVD_EXPORT_NCCL(ncclGroupEnd, group_end, (), ())
