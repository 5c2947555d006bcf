#include "runtime/transport/gpu/libraries.h"

#include <dlfcn.h>
#include <unistd.h>

#include <map>
#include <utility>

#include "base/mutex.h"
#include "base/shared_library.h"

namespace tf_hvd {
namespace {

constexpr char kCuda[] = "libcuda.so.1";
constexpr char kNccl[] = "libnccl.so.2";

// The table of a library. Always the same object, because the runtime may be
// reading it during a query.
template <typename Api>
const Api* Kept(void* library, const Api& filled) {
  static Mutex mutex;
  static auto* const kept PT_GUARDED_BY(mutex) = new std::map<void*, Api>;
  const MutexLock lock(&mutex);
  return &kept->emplace(library, filled).first->second;
}

// dlerror's text, which is null where RTLD_NOLOAD has found nothing.
std::string LoaderText() {
  const char* const text = dlerror();
  return text == nullptr ? std::string() : std::string(text);
}

// The first missing name, or null. The names are those of the binary interface:
// cuda.h maps others to them.
const char* FillCuda(void* library, CudaApi* api) {
  Symbols symbols(library);
  symbols.Find("cuInit", &api->init);
  symbols.Find("cuDriverGetVersion", &api->driver_get_version);
  symbols.Find("cuGetErrorName", &api->get_error_name);
  symbols.Find("cuGetErrorString", &api->get_error_string);
  symbols.Find("cuDeviceGetCount", &api->device_get_count);
  symbols.Find("cuDeviceGet", &api->device_get);
  symbols.Find("cuDeviceGetName", &api->device_get_name);
  symbols.Find("cuDeviceGetUuid_v2", &api->device_get_uuid);
  symbols.Find("cuDeviceGetAttribute", &api->device_get_attribute);
  symbols.Find("cuDevicePrimaryCtxRetain", &api->device_primary_ctx_retain);
  symbols.Find("cuDevicePrimaryCtxRelease_v2",
               &api->device_primary_ctx_release);
  symbols.Find("cuCtxPushCurrent_v2", &api->ctx_push_current);
  symbols.Find("cuCtxPopCurrent_v2", &api->ctx_pop_current);
  symbols.Find("cuCtxGetDevice", &api->ctx_get_device);
  symbols.Find("cuCtxGetStreamPriorityRange",
               &api->ctx_get_stream_priority_range);
  symbols.Find("cuStreamCreateWithPriority", &api->stream_create_with_priority);
  symbols.Find("cuStreamDestroy_v2", &api->stream_destroy);
  symbols.Find("cuStreamGetCtx", &api->stream_get_ctx);
  symbols.Find("cuStreamWaitEvent", &api->stream_wait_event);
  symbols.Find("cuLaunchHostFunc", &api->launch_host_func);
  symbols.Find("cuEventCreate", &api->event_create);
  symbols.Find("cuEventDestroy_v2", &api->event_destroy);
  symbols.Find("cuEventRecord", &api->event_record);
  symbols.Find("cuEventQuery", &api->event_query);
  symbols.Find("cuMemAlloc_v2", &api->mem_alloc);
  symbols.Find("cuMemFree_v2", &api->mem_free);
  symbols.Find("cuMemHostAlloc", &api->mem_host_alloc);
  symbols.Find("cuMemFreeHost", &api->mem_free_host);
  symbols.Find("cuMemcpyAsync", &api->memcpy_async);
  symbols.Find("cuMemsetD32Async", &api->memset_d32_async);
  symbols.Find("cuModuleLoadData", &api->module_load_data);
  symbols.Find("cuModuleUnload", &api->module_unload);
  symbols.Find("cuModuleGetFunction", &api->module_get_function);
  symbols.Find("cuLaunchKernel", &api->launch_kernel);
  return symbols.missing();
}

const char* FillNccl(void* library, NcclApi* api) {
  Symbols symbols(library);
  symbols.Find("ncclGetVersion", &api->get_version);
  symbols.Find("ncclGetUniqueId", &api->get_unique_id);
  symbols.Find("ncclCommInitRankConfig", &api->comm_init_rank_config);
  symbols.Find("ncclCommGetAsyncError", &api->comm_get_async_error);
  symbols.Find("ncclCommFinalize", &api->comm_finalize);
  symbols.Find("ncclCommDestroy", &api->comm_destroy);
  symbols.Find("ncclCommAbort", &api->comm_abort);
  symbols.Find("ncclGetErrorString", &api->get_error_string);
  symbols.Find("ncclGetLastError", &api->get_last_error);
  symbols.Find("ncclAllReduce", &api->all_reduce);
  symbols.Find("ncclReduceScatter", &api->reduce_scatter);
  symbols.Find("ncclAllGather", &api->all_gather);
  symbols.Find("ncclBroadcast", &api->broadcast);
  symbols.Find("ncclSend", &api->send);
  symbols.Find("ncclRecv", &api->receive);
  symbols.Find("ncclGroupStart", &api->group_start);
  symbols.Find("ncclGroupEnd", &api->group_end);
  return symbols.missing();
}

void OpenCuda(const std::string& configured, GpuLibraries* libraries) {
  const std::string path = configured.empty() ? kCuda : configured;
  void* const library = dlopen(path.c_str(), RTLD_NOW);
  if (library == nullptr) {
    libraries->no_cuda = LoaderText();
    return;
  }
  CudaApi api;
  const char* const missing = FillCuda(library, &api);
  libraries->cuda_path = PathOf(reinterpret_cast<void*>(api.init), path);
  if (missing != nullptr) {
    libraries->no_cuda = libraries->cuda_path + " has no " + missing;
    return;
  }
  libraries->cuda = Kept(library, api);
}

// The candidates for NCCL, with the flags for loading each.
std::vector<std::pair<std::string, int>> NcclPlaces(const GpuSearch& search) {
  if (!search.nccl_library.empty()) return {{search.nccl_library, RTLD_NOW}};
  std::vector<std::pair<std::string, int>> places;
  places.emplace_back(kNccl, RTLD_NOW | RTLD_NOLOAD);
  for (const std::string& path : search.nccl_candidates) {
    places.emplace_back(path, RTLD_NOW);
  }
  places.emplace_back(kNccl, RTLD_NOW);
  return places;
}

void UseNccl(void* library, const std::string& path, GpuLibraries* libraries) {
  NcclApi api;
  const char* const missing = FillNccl(library, &api);
  std::string& at = libraries->nccl_path;
  at = PathOf(reinterpret_cast<void*>(api.get_version), path);
  if (missing != nullptr) {
    libraries->no_nccl = at + " has no " + missing;
    return;
  }
  static_cast<void>(api.get_version(&libraries->nccl_version));
  if (libraries->nccl_version < kNcclOldestVersion) {
    libraries->no_nccl = at + " is older than 2.14";
    return;
  }
  libraries->nccl = Kept(library, api);
  libraries->no_nccl.clear();
}

// For an error, a file that exists but cannot be loaded is more informative
// than a missing one.
void OpenNccl(const GpuSearch& search, GpuLibraries* libraries) {
  bool is_there = false;
  for (const auto& [path, how] : NcclPlaces(search)) {
    void* const library = dlopen(path.c_str(), how);
    if (library != nullptr) return UseNccl(library, path, libraries);
    const std::string text = LoaderText();
    if (is_there || text.empty()) continue;
    is_there = access(path.c_str(), F_OK) == 0;
    libraries->no_nccl = text;
  }
}

}  // namespace

GpuLibraries OpenGpuLibraries(const GpuSearch& search) {
  GpuLibraries libraries;
  OpenCuda(search.cuda_library, &libraries);
  if (libraries.cuda == nullptr) {
    libraries.no_nccl = "there is no CUDA driver";
  } else if (!search.use_nccl) {
    libraries.no_nccl = "TF_HVD_NCCL=0";
  } else {
    OpenNccl(search, &libraries);
  }
  return libraries;
}

}  // namespace tf_hvd
