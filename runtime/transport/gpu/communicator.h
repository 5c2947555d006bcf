// GpuCommunicator: moves the data of a collective from GPU to GPU between the
// steps that pack and unpack: NCCL (nccl_communicator.h), or an MPI that reads
// and writes GPU memory (mpi_communicator.h).
//
// Called only by the holder of the progress lock.
#ifndef TF_HVD_RUNTIME_TRANSPORT_GPU_COMMUNICATOR_H_
#define TF_HVD_RUNTIME_TRANSPORT_GPU_COMMUNICATOR_H_

#include <memory>
#include <utility>

#include "base/status.h"
#include "runtime/transport/gpu/device.h"
#include "runtime/transport/gpu/plan.h"

namespace tf_hvd {

class GpuCommunicator {
 public:
  explicit GpuCommunicator(std::shared_ptr<GpuDevice> device)
      : device_(std::move(device)) {}
  virtual ~GpuCommunicator() = default;

  GpuCommunicator(const GpuCommunicator&) = delete;
  GpuCommunicator& operator=(const GpuCommunicator&) = delete;

  // Whether work that follows the last call, including another call, may be put
  // on its stream. Also reports errors of earlier calls, which may occur at any
  // time.
  virtual Status Ready(bool* ready) = 0;

  // Adds a call that starts when the stream reaches it. Only when ready.
  virtual Status Put(const GpuCall& call, CudaStream stream) = 0;

  // Whether its calls can reduce.
  virtual bool reduces() const { return true; }

  // False while a call may write to memory and cannot be cancelled (MPI's;
  // NCCL's calls are aborted).
  virtual bool at_rest() const { return true; }

  const std::shared_ptr<GpuDevice>& device() const { return device_; }

 protected:
  const std::shared_ptr<GpuDevice> device_;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_GPU_COMMUNICATOR_H_
