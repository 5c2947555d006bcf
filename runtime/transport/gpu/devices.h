// GpuDevices: the GPUs of this process, each opened at its first use.
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
  // `api` outlives the devices. `preferred`: number of the device for a rank
  // that has had no tensor yet, if it exists; otherwise the first.
  // `on_all_ranks`: every rank of the job has a driver.
  GpuDevices(const CudaApi* api, int preferred, bool on_all_ranks = true)
      : api_(api), preferred_(preferred), on_all_ranks_(on_all_ranks) {}

  bool on_all_ranks() const { return on_all_ranks_; }

  Status OfOrdinal(int ordinal, std::shared_ptr<GpuDevice>* device);
  // The device of one of TensorFlow's streams.
  Status OfStream(CudaStream stream, std::shared_ptr<GpuDevice>* device);
  // The device on which this rank takes part if it has no tensor: the one that
  // it has used, or the preferred one.
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
