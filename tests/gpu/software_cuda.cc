// The table of the driver's functions for a SoftwareGpu.
#include <cassert>
#include <cstring>
#include <utility>

#include "tests/gpu/software_gpu.h"

namespace tf_hvd {
namespace {

constexpr int kInvalidValue = 1;
constexpr int kInvalidHandle = 400;
constexpr int kNotFound = 500;

// The contexts that are current on this thread, the last one on top.
thread_local std::vector<CUctx_st*> current;

size_t HashOf(const void* data, size_t bytes) {
  return std::hash<std::string_view>()({static_cast<const char*>(data), bytes});
}

}  // namespace

int SoftwareGpu::CurrentDevice() const {
  return current.empty() ? -1 : current.back()->device;
}

// The driver's functions. A friend of the machine.
struct SoftwareCuda {
  using Lock = std::lock_guard<std::mutex>;

  static int GetErrorName(int error, const char** text) {
    switch (error) {
      case kCudaOutOfMemory:
        *text = "CUDA_ERROR_OUT_OF_MEMORY";
        break;
      case kNotFound:
        *text = "CUDA_ERROR_NOT_FOUND";
        break;
      default:
        *text = "CUDA_ERROR_INVALID_VALUE";
    }
    return 0;
  }
  static int GetErrorString(int, const char** text) {
    *text = "said by a GPU of software";
    return 0;
  }
  static int DeviceGetCount(int* count) {
    *count = SoftwareGpu::Get().devices_;
    return 0;
  }
  static int DeviceGet(int* device, int ordinal) {
    *device = ordinal;
    return ordinal < SoftwareGpu::Get().devices_ ? 0 : 101;
  }
  static int DeviceGetName(char* name, int, int) {
    std::strcpy(name, "Software GPU");
    return 0;
  }
  static int DeviceGetUuid(CudaUuid* uuid, int device) {
    *uuid = {};
    uuid->bytes[0] = static_cast<char>(device + 1);
    // Machines in different processes have different seeds and GPUs.
    const uint64_t seed = SoftwareGpu::Get().seed_;
    std::memcpy(uuid->bytes + sizeof(seed), &seed, sizeof(seed));
    return 0;
  }
  static int DeviceGetAttribute(int* value, int attribute, int) {
    *value = attribute == kCudaCapabilityMajor ? 9 : 0;
    return 0;
  }
  static int PrimaryRetain(CudaContext* context, int device) {
    *context = &SoftwareGpu::Get().contexts_[static_cast<size_t>(device)];
    return 0;
  }
  static int CtxPush(CudaContext context) {
    current.push_back(context);
    return 0;
  }
  static int CtxPop(CudaContext* context) {
    if (current.empty()) return kInvalidValue;
    *context = current.back();
    current.pop_back();
    return 0;
  }
  static int CtxGetDevice(int* device) {
    *device = current.empty() ? -1 : current.back()->device;
    return current.empty() ? 201 : 0;
  }
  static int PriorityRange(int* least, int* greatest) {
    *least = 0;
    *greatest = -5;
    return 0;
  }
  static int StreamCreate(CudaStream* stream, unsigned, int) {
    SoftwareGpu& gpu = SoftwareGpu::Get();
    *stream = gpu.NewStream(gpu.CurrentDevice());
    return 0;
  }
  static int StreamDestroy(CudaStream stream) {
    SoftwareGpu& gpu = SoftwareGpu::Get();
    const Lock lock(gpu.mutex_);
    // A driver completes the remaining work. Work that accesses memory should
    // be done.
    for (const SoftwareWork& work : stream->queue) {
      if (work.touches) {
        gpu.Fault("a stream is destroyed with work left: " + work.what);
      }
    }
    return 0;
  }
  static int StreamGetCtx(CudaStream stream, CudaContext* context) {
    return PrimaryRetain(context, stream->device);
  }
  static int StreamWaitEvent(CudaStream stream, CudaEvent event, unsigned) {
    SoftwareGpu& gpu = SoftwareGpu::Get();
    const Lock lock(gpu.mutex_);
    if (const auto record = event->last) {
      gpu.Put(stream,
              {"a wait",
               [record] { return record->done; },
               [record](CUstream_st* of) { of->clock.Join(record->clock); },
               {},
               /*touches=*/false});
    }
    gpu.Advance();
    return 0;
  }
  // Called with the lock held, as the driver calls it with its own lock: a
  // function that called the driver would deadlock.
  static int LaunchHostFunc(CudaStream stream, void (*fn)(void*), void* data) {
    SoftwareGpu& gpu = SoftwareGpu::Get();
    const Lock lock(gpu.mutex_);
    gpu.Put(stream, {"a host function",
                     nullptr,
                     [fn, data](CUstream_st*) { fn(data); },
                     {},
                     /*touches=*/false});
    gpu.Advance();
    return 0;
  }
  static int EventCreate(CudaEvent* event, unsigned) {
    SoftwareGpu& gpu = SoftwareGpu::Get();
    const Lock lock(gpu.mutex_);
    auto created = std::make_unique<CUevent_st>();
    *event = created.get();
    gpu.events_[*event] = std::move(created);
    return 0;
  }
  static int EventDestroy(CudaEvent event) {
    SoftwareGpu& gpu = SoftwareGpu::Get();
    const Lock lock(gpu.mutex_);
    return gpu.events_.erase(event) == 1 ? 0 : kInvalidHandle;
  }
  static int EventRecord(CudaEvent event, CudaStream stream) {
    SoftwareGpu& gpu = SoftwareGpu::Get();
    const Lock lock(gpu.mutex_);
    const auto record = std::make_shared<SoftwareRecord>();
    event->last = record;
    gpu.Put(stream, {"a record",
                     nullptr,
                     [record](CUstream_st* of) {
                       record->clock = of->clock;
                       record->when = std::chrono::steady_clock::now();
                       record->done = true;
                     },
                     {},
                     /*touches=*/false});
    gpu.Advance();
    return 0;
  }
  static int EventQuery(CudaEvent event) {
    SoftwareGpu& gpu = SoftwareGpu::Get();
    const Lock lock(gpu.mutex_);
    gpu.Advance();
    if (event->last == nullptr) return 0;
    if (!event->last->done) return kCudaNotReady;
    gpu.hosts_[gpu.CurrentDevice()].Join(event->last->clock);
    return 0;
  }
  static int MemAlloc(CudaPointer* memory, size_t bytes) {
    SoftwareGpu& gpu = SoftwareGpu::Get();
    if (gpu.fail_allocation_.exchange(false)) return kCudaOutOfMemory;
    *memory = reinterpret_cast<CudaPointer>(
        gpu.NewMemory(gpu.CurrentDevice(), bytes, "memory of tf_hvd"));
    return *memory == 0 ? kCudaOutOfMemory : 0;
  }
  static int MemFree(CudaPointer memory) {
    SoftwareGpu& gpu = SoftwareGpu::Get();
    gpu.FreeMemory(reinterpret_cast<void*>(memory));
    return 0;
  }
  static int MemHostAlloc(void** memory, size_t bytes, unsigned) {
    SoftwareGpu& gpu = SoftwareGpu::Get();
    const Lock lock(gpu.mutex_);
    auto pinned = std::make_unique<char[]>(bytes);
    *memory = pinned.get();
    gpu.log_.Add(reinterpret_cast<uintptr_t>(*memory), bytes, "pinned memory");
    gpu.pinned_[*memory] = std::move(pinned);
    return 0;
  }
  static int MemFreeHost(void* memory) {
    SoftwareGpu& gpu = SoftwareGpu::Get();
    const Lock lock(gpu.mutex_);
    gpu.log_.Remove(reinterpret_cast<uintptr_t>(memory));
    return gpu.pinned_.erase(memory) == 1 ? 0 : kInvalidValue;
  }
  static int MemsetD32Async(CudaPointer to, unsigned value, size_t count,
                            CudaStream stream) {
    SoftwareGpu& gpu = SoftwareGpu::Get();
    const Lock lock(gpu.mutex_);
    auto* const output = reinterpret_cast<unsigned*>(to);
    gpu.Put(stream, {"a memset",
                     nullptr,
                     [&gpu, output, value, count](CUstream_st* of) {
                       if (!gpu.Touch(of, output, count * sizeof(value), true,
                                      "a memset")) {
                         return;
                       }
                       std::fill_n(output, count, value);
                     },
                     {}});
    return 0;
  }
  // Pinned memory must keep its contents from the request for a copy until the
  // copy is made.
  static int MemcpyAsync(CudaPointer to, CudaPointer from, size_t bytes,
                         CudaStream stream) {
    SoftwareGpu& gpu = SoftwareGpu::Get();
    const Lock lock(gpu.mutex_);
    auto* const output = reinterpret_cast<char*>(to);
    const auto* const input = reinterpret_cast<const char*>(from);
    const bool of_host = gpu.IsOfHost(input);
    const size_t hash = of_host ? HashOf(input, bytes) : 0;
    gpu.Put(stream,
            {"a copy",
             nullptr,
             [&gpu, output, input, bytes, of_host, hash](CUstream_st* of) {
               if (!gpu.Touch(of, input, bytes, false, "a copy") ||
                   !gpu.Touch(of, output, bytes, true, "a copy")) {
                 return;
               }
               if (of_host && HashOf(input, bytes) != hash) {
                 gpu.Fault("pinned memory has changed before it was copied");
               }
               std::memcpy(output, input, bytes);
             },
             {}});
    ++gpu.counts_.copies;
    gpu.Advance();
    return 0;
  }
  static int ModuleLoadData(CudaModule* module, const void* image) {
    static char any;
    *module = reinterpret_cast<CudaModule>(&any);
    return image == nullptr ? kInvalidValue : 0;
  }
  static int ModuleUnload(CudaModule) { return 0; }
  static int ModuleGetFunction(CudaFunction* function, CudaModule,
                               const char* name) {
    *function = reinterpret_cast<CudaFunction>(
        const_cast<SoftwareFunction*>(FindSoftwareFunction(name)));
    return *function == nullptr ? kNotFound : 0;
  }
  static int LaunchKernel(CudaFunction function, unsigned grid_x, unsigned,
                          unsigned, unsigned block_x, unsigned, unsigned,
                          unsigned, CudaStream stream, void** arguments,
                          void**) {
    SoftwareGpu& gpu = SoftwareGpu::Get();
    const Lock lock(gpu.mutex_);
    const auto* const kernel = reinterpret_cast<SoftwareFunction*>(function);
    const auto* const argument = static_cast<const char*>(arguments[0]);
    const std::vector<char> given(argument, argument + kernel->argument_bytes);
    const auto threads = static_cast<int>(block_x);
    if (grid_x == 0 || threads == 0) return kInvalidValue;
    // Pinned memory that a kernel reads must keep its contents.
    const auto hash = [&gpu, kernel](const void* of) {
      size_t all = 0;
      for (const auto& [memory, bytes] : kernel->lists(of)) {
        if (gpu.IsOfHost(memory)) all = all * 31 + HashOf(memory, bytes);
      }
      return all;
    };
    const size_t before = hash(given.data());
    gpu.Put(
        stream,
        {kernel->name,
         nullptr,
         [&gpu, kernel, given, grid_x, threads, hash, before](CUstream_st* of) {
           if (hash(given.data()) != before) {
             return gpu.Fault(std::string(kernel->name) +
                              "'s list has changed before it was read");
           }
           kernel->run(&gpu, given.data(), grid_x, threads, of);
         },
         {}});
    ++gpu.counts_.launches;
    gpu.Advance();
    return 0;
  }
};

const CudaApi* SoftwareGpu::Cuda() {
  static const CudaApi api = [] {
    CudaApi table;
    table.init = [](unsigned) { return 0; };
    table.driver_get_version = [](int* version) {
      *version = 12050;
      return 0;
    };
    table.get_error_name = SoftwareCuda::GetErrorName;
    table.get_error_string = SoftwareCuda::GetErrorString;
    table.device_get_count = SoftwareCuda::DeviceGetCount;
    table.device_get = SoftwareCuda::DeviceGet;
    table.device_get_name = SoftwareCuda::DeviceGetName;
    table.device_get_uuid = SoftwareCuda::DeviceGetUuid;
    table.device_get_attribute = SoftwareCuda::DeviceGetAttribute;
    table.device_primary_ctx_retain = SoftwareCuda::PrimaryRetain;
    table.device_primary_ctx_release = [](int) { return 0; };
    table.ctx_push_current = SoftwareCuda::CtxPush;
    table.ctx_pop_current = SoftwareCuda::CtxPop;
    table.ctx_get_device = SoftwareCuda::CtxGetDevice;
    table.ctx_get_stream_priority_range = SoftwareCuda::PriorityRange;
    table.stream_create_with_priority = SoftwareCuda::StreamCreate;
    table.stream_destroy = SoftwareCuda::StreamDestroy;
    table.stream_get_ctx = SoftwareCuda::StreamGetCtx;
    table.stream_wait_event = SoftwareCuda::StreamWaitEvent;
    table.launch_host_func = SoftwareCuda::LaunchHostFunc;
    table.event_create = SoftwareCuda::EventCreate;
    table.event_destroy = SoftwareCuda::EventDestroy;
    table.event_record = SoftwareCuda::EventRecord;
    table.event_query = SoftwareCuda::EventQuery;
    table.mem_alloc = SoftwareCuda::MemAlloc;
    table.mem_free = SoftwareCuda::MemFree;
    table.mem_host_alloc = SoftwareCuda::MemHostAlloc;
    table.mem_free_host = SoftwareCuda::MemFreeHost;
    table.memcpy_async = SoftwareCuda::MemcpyAsync;
    table.memset_d32_async = SoftwareCuda::MemsetD32Async;
    table.module_load_data = SoftwareCuda::ModuleLoadData;
    table.module_unload = SoftwareCuda::ModuleUnload;
    table.module_get_function = SoftwareCuda::ModuleGetFunction;
    table.launch_kernel = SoftwareCuda::LaunchKernel;
    return table;
  }();
  return &api;
}

}  // namespace tf_hvd
