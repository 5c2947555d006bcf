// GpuOperation: one collective on a device: bootstraps NCCL if it is the first
// of its set, puts its launches and calls on the stream when it is its turn,
// and looks whether they have been done.
#ifndef TF_HVD_RUNTIME_TRANSPORT_GPU_OPERATION_H_
#define TF_HVD_RUNTIME_TRANSPORT_GPU_OPERATION_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "runtime/transport/gpu/backend.h"
#include "runtime/transport/gpu/nccl_bootstrap.h"

namespace tf_hvd {

class GpuOperation final : public Operation {
 public:
  // `on`, and `backend`, outlive the operation.
  // `communicator`: null for a set of one rank.
  GpuOperation(GpuBackend* backend, OperationSpec spec, size_t me,
               GpuBackend::OnDevice* on,
               std::shared_ptr<GpuCommunicator> communicator);
  ~GpuOperation() override;

  // Lets the ranks of the set bootstrap `nccl`, the communicator, first, by
  // messages of `host`. Called once, at once.
  Status Bootstrap(Backend* host, NcclCommunicator* nccl);

  Status Progress(int64_t budget_ns, Poll* poll) override;
  bool Abandon() override;

 private:
  void LeaveTurn();
  Status MoveBootstrap(int64_t budget_ns, Poll* poll);
  Status Connect();
  Status Put(Poll* poll);
  Status Begin();
  Status PutStep(const GpuStep& step);
  Status Launch(const GpuMove& move);
  Status Launch(const GpuAdasum& adasum);
  Status Launch(const GpuSum& sum);
  const void* NextRows(size_t bytes);

  GpuBackend* const backend_;
  const OperationSpec spec_;
  const size_t me_;
  GpuBackend::OnDevice* const on_;
  const std::shared_ptr<GpuCommunicator> communicator_;
  std::unique_ptr<Operation> bootstrap_;    // null: none, or it has ended
  NcclCommunicator* connecting_ = nullptr;  // when that has ended
  std::vector<PeerInfo> peers_;             // of all ranks
  PeerInfo mine_;                           // of this one
  std::vector<GpuStep> steps_;
  size_t next_ = 0;  // of steps_
  GpuBackend::Rows rows_;
  size_t rows_used_ = 0;             // bytes
  bool begun_ = false;               // something is on the stream
  std::shared_ptr<GpuEvent> ended_;  // null: not all is on the stream yet
  bool inputs_made_ = false;         // as far as it has been looked
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_GPU_OPERATION_H_
