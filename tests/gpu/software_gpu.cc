#include "tests/gpu/software_gpu.h"

#include <sys/mman.h>

#include <algorithm>
#include <cassert>
#include <cstring>
#include <utility>

#include "tests/gpu/software_kernels.h"

namespace tf_hvd {
namespace {

constexpr size_t kArenaBytes = size_t{1} << 30;
constexpr size_t kAlignment = 256;  // of cuMemAlloc
constexpr int kInvalidValue = 1;
constexpr int kInvalidHandle = 400;
constexpr int kNotFound = 500;

SoftwareGpu* machine = nullptr;
thread_local std::vector<CUctx_st*> current;

size_t HashOf(const void* data, size_t bytes) {
  return std::hash<std::string_view>()({static_cast<const char*>(data), bytes});
}

}  // namespace

SoftwareGpu::SoftwareGpu(int devices, uint64_t seed)
    : seed_(seed), devices_(devices), random_(seed) {
  assert(machine == nullptr);
  machine = this;
  for (int device = 0; device < devices; ++device) {
    contexts_.push_back({device});
    hosts_[device];
  }
  arena_ = static_cast<char*>(mmap(nullptr, kArenaBytes, PROT_NONE,
                                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                                   -1, 0));
  assert(arena_ != MAP_FAILED);
}

SoftwareGpu::~SoftwareGpu() {
  munmap(arena_, kArenaBytes);
  machine = nullptr;
}

SoftwareGpu& SoftwareGpu::Get() {
  assert(machine != nullptr);
  return *machine;
}

std::vector<std::string> SoftwareGpu::Faults() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return faults_;
}

SoftwareGpu::Counts SoftwareGpu::counts() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return counts_;
}

void SoftwareGpu::Fault(const std::string& text) {
  faults_.push_back("seed " + std::to_string(seed_) + ": " + text);
}

int SoftwareGpu::CurrentDevice() const {
  return current.empty() ? -1 : current.back()->device;
}

void SoftwareGpu::Put(CUstream_st* stream, SoftwareWork work) {
  work.host = hosts_[stream->device];
  stream->queue.push_back(std::move(work));
}

bool SoftwareGpu::Touch(CUstream_st* stream, const void* memory, size_t bytes,
                        bool writes, const std::string& what) {
  const std::string wrong = log_.Touch(
      reinterpret_cast<uintptr_t>(memory), bytes, writes,
      {stream->actor, stream->clock.of(stream->actor), what}, stream->clock);
  if (!wrong.empty()) Fault(wrong);
  return wrong.empty();
}

bool SoftwareGpu::Runnable(const CUstream_st& stream) const {
  return !stream.queue.empty() && (stream.queue.front().ready == nullptr ||
                                   stream.queue.front().ready());
}

bool SoftwareGpu::Step() {
  std::vector<CUstream_st*> runnable;
  for (const auto& stream : streams_) {
    if (Runnable(*stream)) runnable.push_back(stream.get());
  }
  if (runnable.empty()) return false;
  CUstream_st* const stream = runnable[Draw(runnable.size())];
  SoftwareWork work = std::move(stream->queue.front());
  stream->queue.pop_front();
  stream->clock.Join(work.host);
  stream->clock.Tick(stream->actor);
  WithMemory([&] { work.run(stream); });
  return true;
}

void SoftwareGpu::Advance() {
  for (uint64_t steps = Draw(4); steps > 0 && Step(); --steps) {
  }
}

void SoftwareGpu::Settle() {
  const std::lock_guard<std::mutex> lock(mutex_);
  while (Step()) {
  }
}

void SoftwareGpu::WithMemory(const std::function<void()>& fn) {
  mprotect(arena_, kArenaBytes, PROT_READ | PROT_WRITE);
  fn();
  mprotect(arena_, kArenaBytes, PROT_NONE);
}

CudaStream SoftwareGpu::NewStream(int device) {
  const std::lock_guard<std::mutex> lock(mutex_);
  streams_.push_back(std::make_unique<CUstream_st>());
  CUstream_st* const stream = streams_.back().get();
  stream->device = device;
  stream->actor = static_cast<int>(streams_.size());
  return stream;
}

char* SoftwareGpu::NewMemory(int, size_t bytes, const std::string& name) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const size_t room =
      (std::max<size_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
  auto at = reinterpret_cast<uintptr_t>(arena_);
  for (const auto& [begin, taken] : used_) {
    if (begin - at >= room) break;
    at = begin + taken;
  }
  if (at + room > reinterpret_cast<uintptr_t>(arena_) + kArenaBytes) {
    return nullptr;
  }
  used_[at] = room;
  log_.Add(at, room, name);
  return reinterpret_cast<char*>(at);
}

void SoftwareGpu::Free(uintptr_t at) {
  if (!log_.Has(at)) return Fault("memory is freed that is not there");
  log_.Remove(at);
  used_.erase(at);
}

void SoftwareGpu::FreeMemory(void* memory) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Free(reinterpret_cast<uintptr_t>(memory));
}

void SoftwareGpu::FreeOn(CudaStream stream, void* memory) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto at = reinterpret_cast<uintptr_t>(memory);
  Put(stream, {"a free",
               nullptr,
               [this, at, memory](CUstream_st* of) {
                 Touch(of, memory, used_[at], true, "what frees it");
                 Free(at);
               },
               {}});
}

void SoftwareGpu::Copy(CudaStream stream, void* to, const void* from,
                       size_t bytes) {
  Cuda()->memcpy_async(reinterpret_cast<CudaPointer>(to),
                       reinterpret_cast<CudaPointer>(from), bytes, stream);
}

void SoftwareGpu::Write(CudaStream stream, void* to, std::vector<char> bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Put(stream, {"a kernel",
               nullptr,
               [this, to, bytes = std::move(bytes)](CUstream_st* of) {
                 if (!Touch(of, to, bytes.size(), true, "a kernel")) return;
                 std::copy(bytes.begin(), bytes.end(), static_cast<char*>(to));
               },
               {}});
}

std::shared_ptr<std::vector<char>> SoftwareGpu::Read(CudaStream stream,
                                                     const void* from,
                                                     size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto result = std::make_shared<std::vector<char>>();
  Put(stream, {"a kernel",
               nullptr,
               [this, from, bytes, result](CUstream_st* of) {
                 if (!Touch(of, from, bytes, false, "a kernel")) return;
                 const auto* const begin = static_cast<const char*>(from);
                 result->assign(begin, begin + bytes);
               },
               {}});
  return result;
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
    const Lock lock(gpu.mutex_);
    ++gpu.counts_.allocations;
    return 0;
  }
  static int StreamDestroy(CudaStream stream) {
    SoftwareGpu& gpu = SoftwareGpu::Get();
    const Lock lock(gpu.mutex_);
    if (!stream->queue.empty()) {
      gpu.Fault("a stream is destroyed on which there is still " +
                stream->queue.front().what);
    }
    ++gpu.counts_.allocations;
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
               {}});
    }
    gpu.Advance();
    return 0;
  }
  static int EventCreate(CudaEvent* event, unsigned) {
    SoftwareGpu& gpu = SoftwareGpu::Get();
    const Lock lock(gpu.mutex_);
    auto created = std::make_unique<CUevent_st>();
    *event = created.get();
    gpu.events_[*event] = std::move(created);
    ++gpu.counts_.allocations;
    return 0;
  }
  static int EventDestroy(CudaEvent event) {
    SoftwareGpu& gpu = SoftwareGpu::Get();
    const Lock lock(gpu.mutex_);
    ++gpu.counts_.allocations;
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
                       record->done = true;
                     },
                     {}});
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
    const Lock lock(gpu.mutex_);
    ++gpu.counts_.allocations;
    return *memory == 0 ? kCudaOutOfMemory : 0;
  }
  static int MemFree(CudaPointer memory) {
    SoftwareGpu& gpu = SoftwareGpu::Get();
    gpu.FreeMemory(reinterpret_cast<void*>(memory));
    const Lock lock(gpu.mutex_);
    ++gpu.counts_.allocations;
    return 0;
  }
  static int MemHostAlloc(void** memory, size_t bytes, unsigned) {
    SoftwareGpu& gpu = SoftwareGpu::Get();
    const Lock lock(gpu.mutex_);
    auto pinned = std::make_unique<char[]>(bytes);
    *memory = pinned.get();
    gpu.log_.Add(reinterpret_cast<uintptr_t>(*memory), bytes, "pinned memory");
    gpu.pinned_[*memory] = std::move(pinned);
    ++gpu.counts_.allocations;
    return 0;
  }
  static int MemFreeHost(void* memory) {
    SoftwareGpu& gpu = SoftwareGpu::Get();
    const Lock lock(gpu.mutex_);
    gpu.log_.Remove(reinterpret_cast<uintptr_t>(memory));
    ++gpu.counts_.allocations;
    return gpu.pinned_.erase(memory) == 1 ? 0 : kInvalidValue;
  }
  // What lies in pinned memory when a copy is asked for must lie there still
  // when it is made.
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
        const_cast<SoftwareKernel*>(FindSoftwareKernel(name)));
    return *function == nullptr ? kNotFound : 0;
  }
  static int LaunchKernel(CudaFunction function, unsigned grid_x, unsigned,
                          unsigned, unsigned block_x, unsigned, unsigned,
                          unsigned, CudaStream stream, void** arguments,
                          void**) {
    SoftwareGpu& gpu = SoftwareGpu::Get();
    const Lock lock(gpu.mutex_);
    const auto* const kernel = reinterpret_cast<SoftwareKernel*>(function);
    const MoveArguments given = *static_cast<MoveArguments*>(arguments[0]);
    const auto threads = static_cast<int>(block_x);
    if (grid_x == 0 || threads == 0) return kInvalidValue;
    gpu.Put(stream, {kernel->name,
                     nullptr,
                     [&gpu, kernel, given, grid_x, threads](CUstream_st* of) {
                       gpu.RunKernel(*kernel, given, grid_x, threads, of);
                     },
                     {}});
    ++gpu.counts_.launches;
    gpu.Advance();
    return 0;
  }
};

bool SoftwareGpu::IsOfHost(const void* memory) const {
  const auto* const at = static_cast<const char*>(memory);
  return at < arena_ || at >= arena_ + kArenaBytes;
}

void SoftwareGpu::RunKernel(const SoftwareKernel& kernel,
                            const MoveArguments& arguments, unsigned blocks,
                            int threads, CUstream_st* stream) {
  bool sound = Touch(stream, arguments.rows,
                     static_cast<size_t>(arguments.row_count) * sizeof(MoveRow),
                     false, kernel.name);
  int64_t begin = 0;
  for (int64_t i = 0; sound && i < arguments.row_count; ++i) {
    const MoveRow& row = arguments.rows[i];
    const auto count = static_cast<size_t>(row.end - begin);
    sound = (row.input == nullptr ||
             Touch(stream, row.input, count * kernel.input_bytes, false,
                   kernel.name)) &&
            Touch(stream, row.output, count * kernel.output_bytes, true,
                  kernel.name);
    begin = row.end;
  }
  if (!sound) return;
  if (begin != arguments.total ||
      static_cast<int64_t>(blocks) * arguments.tile < arguments.total) {
    return Fault(std::string(kernel.name) + " does not move all elements");
  }
  for (int64_t tile = 0; tile < static_cast<int64_t>(blocks); ++tile) {
    for (int thread = 0; thread < threads; ++thread) {
      kernel.tile(arguments, tile, thread, threads);
    }
  }
}

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
    table.event_create = SoftwareCuda::EventCreate;
    table.event_destroy = SoftwareCuda::EventDestroy;
    table.event_record = SoftwareCuda::EventRecord;
    table.event_query = SoftwareCuda::EventQuery;
    table.mem_alloc = SoftwareCuda::MemAlloc;
    table.mem_free = SoftwareCuda::MemFree;
    table.mem_host_alloc = SoftwareCuda::MemHostAlloc;
    table.mem_free_host = SoftwareCuda::MemFreeHost;
    table.memcpy_async = SoftwareCuda::MemcpyAsync;
    table.module_load_data = SoftwareCuda::ModuleLoadData;
    table.module_unload = SoftwareCuda::ModuleUnload;
    table.module_get_function = SoftwareCuda::ModuleGetFunction;
    table.launch_kernel = SoftwareCuda::LaunchKernel;
    return table;
  }();
  return &api;
}

}  // namespace tf_hvd
