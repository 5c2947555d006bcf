// GpuDevices: the GPUs of this process, each opened when it is first used.
//
// Any thread.
#ifndef TF_HVD_RUNTIME_TRANSPORT_GPU_DEVICES_H_
#define TF_HVD_RUNTIME_TRANSPORT_GPU_DEVICES_H_

#include <map>
#include <memory>

#include "base/mutex.h"
#include "base/status.h"
#include "runtime/transport/gpu/cuda_api.h"
#include "runtime/transport/gpu/device.h"

namespace tf_hvd {

class GpuDevices {
 public:
  // `api` outlives the devices. `preferred`: the one that a rank takes that
  // has shown no tensor yet, if there are so many; otherwise the first.
  // `on_all_ranks`: every rank of the job has a driver.
  GpuDevices(const CudaApi* api, int preferred, bool on_all_ranks = true)
      : api_(api), preferred_(preferred), on_all_ranks_(on_all_ranks) {}

  bool on_all_ranks() const { return on_all_ranks_; }

  Status OfOrdinal(int ordinal, std::shared_ptr<GpuDevice>* device);
  // Of a stream that TensorFlow works on.
  Status OfStream(CudaStream stream, std::shared_ptr<GpuDevice>* device);
  // Where this rank does its part if it has no tensor: the device that it has
  // used, or the preferred one.
  Status Any(std::shared_ptr<GpuDevice>* device);

 private:
  const CudaApi* const api_;
  const int preferred_;
  const bool on_all_ranks_;
  Mutex mutex_;
  std::map<int, std::shared_ptr<GpuDevice>> opened_ GUARDED_BY(mutex_);
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_GPU_DEVICES_H_
