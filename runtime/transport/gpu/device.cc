#include "runtime/transport/gpu/device.h"

#include <algorithm>
#include <utility>

#include "compute/device_image.h"

namespace tf_hvd {
namespace {

// Number created at once.
constexpr int kEvents = 64;

}  // namespace

Status FromCuda(const CudaApi& api, const char* call, int error) {
  if (error == kCudaSuccess) return Status::Ok();
  const char* name = nullptr;
  const char* meaning = nullptr;
  static_cast<void>(api.get_error_name(error, &name));
  static_cast<void>(api.get_error_string(error, &meaning));
  std::string text = std::string(call) + " failed: ";
  text += name != nullptr ? name : "error " + std::to_string(error);
  if (meaning != nullptr) text += std::string(" (") + meaning + ")";
  return Aborted(text);
}

GpuDevice::Current::Current(const GpuDevice& device) : api_(*device.api_) {
  const int error = api_.ctx_push_current(device.context_);
  pushed_ = error == kCudaSuccess;
  status_ = device.Check("cuCtxPushCurrent", error);
}

GpuDevice::Current::~Current() {
  CudaContext popped = nullptr;
  if (pushed_) static_cast<void>(api_.ctx_pop_current(&popped));
}

GpuEvent::~GpuEvent() {
  const MutexLock lock(&device_->mutex_);
  device_->free_events_.push_back(event_);
}

Status GpuDevice::Check(const char* call, int error) const {
  return FromCuda(*api_, call, error)
      .WithContext("GPU " + std::to_string(ordinal_) +
                   (name_.empty() ? "" : " (" + name_ + ")"));
}

Status GpuDevice::Open(const CudaApi* api, int ordinal,
                       std::shared_ptr<GpuDevice>* device) {
  const std::shared_ptr<GpuDevice> opened(new GpuDevice(api, ordinal));
  TF_HVD_RETURN_IF_ERROR(opened->Init());
  *device = opened;
  return Status::Ok();
}

Status GpuDevice::Init() {
  char name[256] = "";
  TF_HVD_RETURN_IF_ERROR(Check("cuInit", api_->init(0)));
  TF_HVD_RETURN_IF_ERROR(
      Check("cuDeviceGet", api_->device_get(&device_, ordinal_)));
  TF_HVD_RETURN_IF_ERROR(
      Check("cuDeviceGetName",
            api_->device_get_name(name, sizeof(name) - 1, device_)));
  name_ = name;
  TF_HVD_RETURN_IF_ERROR(
      Check("cuDeviceGetUuid", api_->device_get_uuid(&uuid_, device_)));
  return Check("cuDevicePrimaryCtxRetain",
               api_->device_primary_ctx_retain(&context_, device_));
}

// Only when nothing uses it any more. Errors of the driver are ignored: it may
// have been unloaded at the end of the process.
GpuDevice::~GpuDevice() {
  if (context_ == nullptr) return;
  {
    const Current current(*this);
    for (const CudaEvent event : free_events_) {
      static_cast<void>(api_->event_destroy(event));
    }
    for (const CudaStream stream : streams_) {
      static_cast<void>(api_->stream_destroy(stream));
    }
    if (module_ != nullptr) static_cast<void>(api_->module_unload(module_));
  }
  static_cast<void>(api_->device_primary_ctx_release(device_));
}

Status GpuDevice::NewStream(CudaStream* stream) {
  const Current current(*this);
  TF_HVD_RETURN_IF_ERROR(current.status());
  int least = 0;
  int greatest = 0;
  TF_HVD_RETURN_IF_ERROR(
      Check("cuCtxGetStreamPriorityRange",
            api_->ctx_get_stream_priority_range(&least, &greatest)));
  TF_HVD_RETURN_IF_ERROR(Check("cuStreamCreateWithPriority",
                               api_->stream_create_with_priority(
                                   stream, kCudaStreamNonBlocking, greatest)));
  const MutexLock lock(&mutex_);
  streams_.push_back(*stream);
  return Status::Ok();
}

Status GpuDevice::Record(CudaStream stream, std::shared_ptr<GpuEvent>* event) {
  const Current current(*this);
  TF_HVD_RETURN_IF_ERROR(current.status());
  CudaEvent recorded = nullptr;
  {
    const MutexLock lock(&mutex_);
    if (free_events_.empty()) TF_HVD_RETURN_IF_ERROR(AddEvents());
    recorded = free_events_.back();
    free_events_.pop_back();
  }
  *event = std::make_shared<GpuEvent>(shared_from_this(), recorded);
  return Check("cuEventRecord", api_->event_record(recorded, stream));
}

// Many at once, so that a later step with more operations in progress creates
// none.
Status GpuDevice::AddEvents() {
  for (int i = 0; i < kEvents; ++i) {
    CudaEvent made = nullptr;
    TF_HVD_RETURN_IF_ERROR(Check(
        "cuEventCreate", api_->event_create(&made, kCudaEventDisableTiming)));
    free_events_.push_back(made);
  }
  return Status::Ok();
}

Status GpuDevice::Wait(CudaStream stream, const GpuEvent& event) {
  const Current current(*this);
  TF_HVD_RETURN_IF_ERROR(current.status());
  return Check("cuStreamWaitEvent",
               api_->stream_wait_event(stream, event.get(), 0));
}

Status GpuDevice::HasFired(const GpuEvent& event, bool* fired) {
  const Current current(*this);
  TF_HVD_RETURN_IF_ERROR(current.status());
  const int error = api_->event_query(event.get());
  *fired = error == kCudaSuccess;
  return error == kCudaNotReady ? Status::Ok() : Check("cuEventQuery", error);
}

Status GpuDevice::Allocate(MemoryKind kind, size_t bytes,
                           std::shared_ptr<char>* memory) {
  const Current current(*this);
  TF_HVD_RETURN_IF_ERROR(current.status());
  const auto self = shared_from_this();
  if (kind == MemoryKind::kPinned) {
    void* pinned = nullptr;
    TF_HVD_RETURN_IF_ERROR(
        Check("cuMemHostAlloc", api_->mem_host_alloc(&pinned, bytes, 0)));
    memory->reset(static_cast<char*>(pinned), [self](char* of) {
      const Current now(*self);
      static_cast<void>(self->api_->mem_free_host(of));
    });
    return Status::Ok();
  }
  CudaPointer address = 0;
  const int error = api_->mem_alloc(&address, bytes);
  if (error == kCudaOutOfMemory) {
    return Check("cuMemAlloc", error)
        .WithContext("cannot allocate " +
                     std::to_string((bytes + (1 << 20) - 1) >> 20) +
                     " MiB of GPU memory for packing tensors. Enable memory "
                     "growth: TF_FORCE_GPU_ALLOW_GROWTH=true, or "
                     "tf.config.experimental.set_memory_growth");
  }
  TF_HVD_RETURN_IF_ERROR(Check("cuMemAlloc", error));
  // An address of the device is a number to the driver, a pointer to NCCL.
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  memory->reset(reinterpret_cast<char*>(address), [self](char* of) {
    const Current now(*self);
    static_cast<void>(self->api_->mem_free(reinterpret_cast<CudaPointer>(of)));
  });
  return Status::Ok();
}

Status GpuDevice::Copy(CudaStream stream, void* to, const void* from,
                       size_t bytes) {
  if (bytes == 0) return Status::Ok();
  const Current current(*this);
  TF_HVD_RETURN_IF_ERROR(current.status());
  return Check(
      "cuMemcpyAsync",
      api_->memcpy_async(reinterpret_cast<CudaPointer>(to),
                         reinterpret_cast<CudaPointer>(from), bytes, stream));
}

Status GpuDevice::Store(CudaStream stream, void* to, int32_t number) {
  const Current current(*this);
  TF_HVD_RETURN_IF_ERROR(current.status());
  return Check(
      "cuMemsetD32Async",
      api_->memset_d32_async(reinterpret_cast<CudaPointer>(to),
                             static_cast<unsigned>(number), 1, stream));
}

Status GpuDevice::FindImage(const void** image) const {
  int major = 0;
  int minor = 0;
  TF_HVD_RETURN_IF_ERROR(
      Check("cuDeviceGetAttribute",
            api_->device_get_attribute(&major, kCudaCapabilityMajor, device_)));
  TF_HVD_RETURN_IF_ERROR(
      Check("cuDeviceGetAttribute",
            api_->device_get_attribute(&minor, kCudaCapabilityMinor, device_)));
  *image = DeviceImage(major, minor);
  if (*image != nullptr) return Status::Ok();
  return FailedPrecondition(
      "this build of tf_hvd has no kernels for GPU " +
      std::to_string(ordinal_) + " (" + name_ + ", compute capability " +
      std::to_string(major) + "." + std::to_string(minor) +
      "); put the collective on the CPU: with tf.device('/CPU:0')");
}

Status GpuDevice::FindKernel(const std::string& kernel,
                             CudaFunction* function) {
  const MutexLock lock(&mutex_);
  if (module_ == nullptr) {
    const void* image = nullptr;
    TF_HVD_RETURN_IF_ERROR(FindImage(&image));
    TF_HVD_RETURN_IF_ERROR(
        Check("cuModuleLoadData", api_->module_load_data(&module_, image)));
  }
  const auto found =
      std::find_if(kernels_.begin(), kernels_.end(),
                   [&](const auto& one) { return one.first == kernel; });
  if (found != kernels_.end()) {
    *function = found->second;
    return Status::Ok();
  }
  TF_HVD_RETURN_IF_ERROR(
      Check("cuModuleGetFunction",
            api_->module_get_function(function, module_, kernel.c_str())));
  kernels_.emplace_back(kernel, *function);
  return Status::Ok();
}

Status GpuDevice::Launch(CudaStream stream, const std::string& kernel,
                         unsigned blocks, unsigned threads, void** arguments) {
  const Current current(*this);
  TF_HVD_RETURN_IF_ERROR(current.status());
  CudaFunction function = nullptr;
  TF_HVD_RETURN_IF_ERROR(
      FindKernel(kernel, &function).WithContext("kernel " + kernel));
  return Check("cuLaunchKernel",
               api_->launch_kernel(function, blocks, 1, 1, threads, 1, 1, 0,
                                   stream, arguments, nullptr))
      .WithContext("kernel " + kernel);
}

Status GpuDevice::Launch(CudaStream stream, const GpuMove& move, char* rows) {
  MoveArguments arguments = move.WriteRows(rows);
  void* values[] = {&arguments};
  return Launch(stream, move.kernel, move.blocks(), GpuMove::kThreads, values);
}

Status GpuDevice::CallWhenDone(CudaStream stream,
                               const HostFunction& function) {
  const Current current(*this);
  TF_HVD_RETURN_IF_ERROR(current.status());
  return Check("cuLaunchHostFunc",
               api_->launch_host_func(stream, function.fn, function.data));
}

}  // namespace tf_hvd
