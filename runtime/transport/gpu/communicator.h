// GpuCommunicator: what carries a collective from GPU to GPU between the steps
// that pack and unpack: NCCL (nccl_communicator.h), or an MPI that reads and
// writes the memory of GPUs (mpi_communicator.h).
//
// Holder of the progress lock only.
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

  // Whether what comes behind the last call may be put on its stream, another
  // call too. Tells errors of what was under way before, which come at any
  // time.
  virtual Status Ready(bool* ready) = 0;

  // A call that begins when the stream has come so far. Only when ready.
  virtual Status Put(const GpuCall& call, CudaStream stream) = 0;

  // Whether its calls reduce what they move.
  virtual bool reduces() const { return true; }

  // False while a call may write to memory that nobody can take back (MPI's;
  // NCCL's are aborted).
  virtual bool at_rest() const { return true; }

  const std::shared_ptr<GpuDevice>& device() const { return device_; }

 protected:
  const std::shared_ptr<GpuDevice> device_;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_GPU_COMMUNICATOR_H_
