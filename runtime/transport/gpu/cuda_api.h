// CudaApi: the table of the CUDA driver's functions that tf_hvd calls, in types
// that do not need cuda.h. libraries.cc fills it from the driver found at run
// time; tests fill it with a software GPU (tests/gpu/).
//
// The names are the driver's without "cu"; for their behaviour see CUDA's
// documentation. Functions return 0 (CUDA_SUCCESS) or an error; error_name and
// error_string describe it. Any thread; a context is current on a thread.
//
// No function waits for the device: the table has no synchronize.
#ifndef TF_HVD_RUNTIME_TRANSPORT_GPU_CUDA_API_H_
#define TF_HVD_RUNTIME_TRANSPORT_GPU_CUDA_API_H_

#include <cstddef>
#include <cstdint>

// The types behind CUDA's handles, with cuda.h's names.
struct CUctx_st;
struct CUevent_st;
struct CUfunc_st;
struct CUmod_st;
struct CUstream_st;

namespace tf_hvd {

using CudaContext = CUctx_st*;
using CudaEvent = CUevent_st*;
using CudaFunction = CUfunc_st*;
using CudaModule = CUmod_st*;
using CudaStream = CUstream_st*;
using CudaPointer = unsigned long long;  // CUdeviceptr

struct CudaUuid {
  char bytes[16];
};

inline constexpr int kCudaSuccess = 0;
inline constexpr int kCudaOutOfMemory = 2;
inline constexpr int kCudaNotReady = 600;
inline constexpr int kCudaCapabilityMajor = 75;  // attributes of a device
inline constexpr int kCudaCapabilityMinor = 76;
inline constexpr unsigned kCudaEventDisableTiming = 2;
inline constexpr unsigned kCudaStreamNonBlocking = 1;

struct CudaApi {
  int (*init)(unsigned flags) = nullptr;
  int (*driver_get_version)(int* version) = nullptr;
  int (*get_error_name)(int error, const char** text) = nullptr;
  int (*get_error_string)(int error, const char** text) = nullptr;

  int (*device_get_count)(int* count) = nullptr;
  int (*device_get)(int* device, int ordinal) = nullptr;
  int (*device_get_name)(char* name, int bytes, int device) = nullptr;
  int (*device_get_uuid)(CudaUuid* uuid, int device) = nullptr;
  int (*device_get_attribute)(int* value, int attribute, int device) = nullptr;
  int (*device_primary_ctx_retain)(CudaContext* context, int device) = nullptr;
  int (*device_primary_ctx_release)(int device) = nullptr;
  int (*ctx_push_current)(CudaContext context) = nullptr;
  int (*ctx_pop_current)(CudaContext* context) = nullptr;
  int (*ctx_get_device)(int* device) = nullptr;
  int (*ctx_get_stream_priority_range)(int* least, int* greatest) = nullptr;

  int (*stream_create_with_priority)(CudaStream* stream, unsigned flags,
                                     int priority) = nullptr;
  int (*stream_destroy)(CudaStream stream) = nullptr;
  int (*stream_get_ctx)(CudaStream stream, CudaContext* context) = nullptr;
  int (*stream_wait_event)(CudaStream stream, CudaEvent event,
                           unsigned flags) = nullptr;
  int (*launch_host_func)(CudaStream stream, void (*fn)(void* data),
                          void* data) = nullptr;
  int (*event_create)(CudaEvent* event, unsigned flags) = nullptr;
  int (*event_destroy)(CudaEvent event) = nullptr;
  int (*event_record)(CudaEvent event, CudaStream stream) = nullptr;
  int (*event_query)(CudaEvent event) = nullptr;

  int (*mem_alloc)(CudaPointer* memory, size_t bytes) = nullptr;
  int (*mem_free)(CudaPointer memory) = nullptr;
  int (*mem_host_alloc)(void** memory, size_t bytes, unsigned flags) = nullptr;
  int (*mem_free_host)(void* memory) = nullptr;
  int (*memcpy_async)(CudaPointer to, CudaPointer from, size_t bytes,
                      CudaStream stream) = nullptr;
  int (*memset_d32_async)(CudaPointer to, unsigned value, size_t count,
                          CudaStream stream) = nullptr;

  int (*module_load_data)(CudaModule* module, const void* image) = nullptr;
  int (*module_unload)(CudaModule module) = nullptr;
  int (*module_get_function)(CudaFunction* function, CudaModule module,
                             const char* name) = nullptr;
  int (*launch_kernel)(CudaFunction function, unsigned grid_x, unsigned grid_y,
                       unsigned grid_z, unsigned block_x, unsigned block_y,
                       unsigned block_z, unsigned shared_bytes,
                       CudaStream stream, void** arguments,
                       void** extra) = nullptr;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_GPU_CUDA_API_H_
