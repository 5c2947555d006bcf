// Compares the table of the CUDA driver's functions with the toolkit's header.
// The names are those of the binary interface; cuda.h defines other names as
// macros for them.
#include "runtime/transport/gpu/cuda_api.h"

#include <cuda.h>
#include <gtest/gtest.h>

#include <cstddef>

#include "tests/gpu/alike.h"

namespace tf_hvd {
namespace {

#define TF_HVD_CUDA_FUNCTIONS(FUNCTION)                                \
  FUNCTION(init, cuInit)                                               \
  FUNCTION(driver_get_version, cuDriverGetVersion)                     \
  FUNCTION(get_error_name, cuGetErrorName)                             \
  FUNCTION(get_error_string, cuGetErrorString)                         \
  FUNCTION(device_get_count, cuDeviceGetCount)                         \
  FUNCTION(device_get, cuDeviceGet)                                    \
  FUNCTION(device_get_name, cuDeviceGetName)                           \
  FUNCTION(device_get_uuid, cuDeviceGetUuid_v2)                        \
  FUNCTION(device_get_attribute, cuDeviceGetAttribute)                 \
  FUNCTION(device_primary_ctx_retain, cuDevicePrimaryCtxRetain)        \
  FUNCTION(device_primary_ctx_release, cuDevicePrimaryCtxRelease_v2)   \
  FUNCTION(ctx_push_current, cuCtxPushCurrent_v2)                      \
  FUNCTION(ctx_pop_current, cuCtxPopCurrent_v2)                        \
  FUNCTION(ctx_get_device, cuCtxGetDevice)                             \
  FUNCTION(ctx_get_stream_priority_range, cuCtxGetStreamPriorityRange) \
  FUNCTION(stream_create_with_priority, cuStreamCreateWithPriority)    \
  FUNCTION(stream_destroy, cuStreamDestroy_v2)                         \
  FUNCTION(stream_get_ctx, cuStreamGetCtx)                             \
  FUNCTION(stream_wait_event, cuStreamWaitEvent)                       \
  FUNCTION(launch_host_func, cuLaunchHostFunc)                         \
  FUNCTION(event_create, cuEventCreate)                                \
  FUNCTION(event_destroy, cuEventDestroy_v2)                           \
  FUNCTION(event_record, cuEventRecord)                                \
  FUNCTION(event_query, cuEventQuery)                                  \
  FUNCTION(mem_alloc, cuMemAlloc_v2)                                   \
  FUNCTION(mem_free, cuMemFree_v2)                                     \
  FUNCTION(mem_host_alloc, cuMemHostAlloc)                             \
  FUNCTION(mem_free_host, cuMemFreeHost)                               \
  FUNCTION(memcpy_async, cuMemcpyAsync)                                \
  FUNCTION(memset_d32_async, cuMemsetD32Async)                         \
  FUNCTION(module_load_data, cuModuleLoadData)                         \
  FUNCTION(module_unload, cuModuleUnload)                              \
  FUNCTION(module_get_function, cuModuleGetFunction)                   \
  FUNCTION(launch_kernel, cuLaunchKernel)

#define TF_HVD_CHECK_FUNCTION(member, function)                             \
  static_assert(AreAlike<decltype(CudaApi::member), decltype(&function)>(), \
                #function " has different arguments");
TF_HVD_CUDA_FUNCTIONS(TF_HVD_CHECK_FUNCTION)

static_assert(AreAlike<CudaPointer, CUdeviceptr>(), "");
static_assert(AreAlike<CudaContext, CUcontext>(), "");
static_assert(AreAlike<CudaEvent, CUevent>(), "");
static_assert(AreAlike<CudaFunction, CUfunction>(), "");
static_assert(AreAlike<CudaModule, CUmodule>(), "");
static_assert(AreAlike<CudaStream, CUstream>(), "");
static_assert(sizeof(CudaUuid::bytes) == sizeof(CUuuid::bytes), "");

TEST(CudaApi, EveryFunctionIsChecked) {
#define TF_HVD_COUNT_FUNCTION(member, function) +1
  EXPECT_EQ(sizeof(CudaApi) / sizeof(void (*)()),
            size_t{0} TF_HVD_CUDA_FUNCTIONS(TF_HVD_COUNT_FUNCTION));
}

TEST(CudaApi, NumbersMatchTheHeader) {
  EXPECT_EQ(kCudaSuccess, CUDA_SUCCESS);
  EXPECT_EQ(kCudaOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(kCudaNotReady, CUDA_ERROR_NOT_READY);
  EXPECT_EQ(kCudaCapabilityMajor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  EXPECT_EQ(kCudaCapabilityMinor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  EXPECT_EQ(kCudaEventDisableTiming, unsigned{CU_EVENT_DISABLE_TIMING});
  EXPECT_EQ(kCudaStreamNonBlocking, unsigned{CU_STREAM_NON_BLOCKING});
}

}  // namespace
}  // namespace tf_hvd
