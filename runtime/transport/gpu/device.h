// GpuDevice: one GPU as used by this process: its context (shared with
// TensorFlow), a pool of events, memory that is reused, and tf_hvd's kernels.
// An error Status names the CUDA call that failed.
//
// Any thread; each call makes the context current. Nothing waits for the
// device, except the first allocations.
#ifndef TF_HVD_RUNTIME_TRANSPORT_GPU_DEVICE_H_
#define TF_HVD_RUNTIME_TRANSPORT_GPU_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "runtime/contract/operation.h"
#include "runtime/transport/gpu/cuda_api.h"
#include "runtime/transport/gpu/move.h"

namespace tf_hvd {

class GpuDevice;

// The work on a stream up to the point where the event was recorded. The
// destructor returns it to its device's pool; work on the device that waits for
// it still does.
class GpuEvent {
 public:
  GpuEvent(std::shared_ptr<GpuDevice> device, CudaEvent event)
      : device_(std::move(device)), event_(event) {}
  ~GpuEvent();

  GpuEvent(const GpuEvent&) = delete;
  GpuEvent& operator=(const GpuEvent&) = delete;

  CudaEvent get() const { return event_; }
  const std::shared_ptr<GpuDevice>& device() const { return device_; }

 private:
  const std::shared_ptr<GpuDevice> device_;
  const CudaEvent event_;
};

// A function that the driver calls, with its argument.
struct HostFunction {
  void (*fn)(void* data) = nullptr;
  void* data = nullptr;
};

// An error of the driver: "cuMemAlloc failed: CUDA_ERROR_OUT_OF_MEMORY (out of
// memory)". Ok if `error` is 0.
Status FromCuda(const CudaApi& api, const char* call, int error);

class GpuDevice : public std::enable_shared_from_this<GpuDevice> {
 public:
  // `api` outlives the device. `ordinal`: number among the devices visible to
  // the process.
  static Status Open(const CudaApi* api, int ordinal,
                     std::shared_ptr<GpuDevice>* device);
  ~GpuDevice();

  GpuDevice(const GpuDevice&) = delete;
  GpuDevice& operator=(const GpuDevice&) = delete;

  int ordinal() const { return ordinal_; }
  const std::string& name() const { return name_; }
  const CudaUuid& uuid() const { return uuid_; }

  // A stream without implicit synchronization, with a high priority if the
  // device supports it. It lives as long as the device.
  Status NewStream(CudaStream* stream);
  Status Record(CudaStream stream, std::shared_ptr<GpuEvent>* event);
  Status Wait(CudaStream stream, const GpuEvent& event);
  Status HasFired(const GpuEvent& event, bool* fired);

  // Allocates memory of the device, or pinned host memory. Must not be freed
  // while it is in use.
  Status Allocate(MemoryKind kind, size_t bytes, std::shared_ptr<char>* memory);
  // Either side may be on the device or pinned.
  Status Copy(CudaStream stream, void* to, const void* from, size_t bytes);
  Status Store(CudaStream stream, void* to, int32_t number);

  // Calls `fn` with the device's context current, as NCCL requires.
  template <typename Fn>
  Status Within(const Fn& fn) {
    const Current current(*this);
    TF_HVD_RETURN_IF_ERROR(current.status());
    return fn();
  }

  // One of compute/device_kernels.cu.cc. `arguments` as for cuLaunchKernel.
  Status Launch(CudaStream stream, const std::string& kernel, unsigned blocks,
                unsigned threads, void** arguments);
  // `rows`: pinned memory for the rows of the move, in use until the launch is
  // done.
  Status Launch(CudaStream stream, const GpuMove& move, char* rows);

  // Calls the function on a thread of the driver when the stream reaches it. It
  // must not call CUDA. Never called if the device fails before.
  Status CallWhenDone(CudaStream stream, const HostFunction& function);

 private:
  friend class GpuEvent;

  // Makes the device's context current while this object exists.
  class Current {
   public:
    explicit Current(const GpuDevice& device);
    ~Current();

    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;

    const Status& status() const { return status_; }

   private:
    const CudaApi& api_;
    bool pushed_ = false;
    Status status_;
  };

  GpuDevice(const CudaApi* api, int ordinal) : api_(api), ordinal_(ordinal) {}
  Status Init();
  Status Check(const char* call, int error) const;
  Status AddEvents() REQUIRES(mutex_);
  Status FindImage(const void** image) const;
  Status FindKernel(const std::string& kernel, CudaFunction* function);

  const CudaApi* const api_;
  const int ordinal_;
  int device_ = 0;
  CudaContext context_ = nullptr;
  std::string name_;
  CudaUuid uuid_{};
  Mutex mutex_;
  std::vector<CudaEvent> free_events_ GUARDED_BY(mutex_);
  std::vector<CudaStream> streams_ GUARDED_BY(mutex_);
  CudaModule module_ GUARDED_BY(mutex_) = nullptr;
  std::vector<std::pair<std::string, CudaFunction>> kernels_ GUARDED_BY(mutex_);
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_GPU_DEVICE_H_
