// GpuOperation: one collective on a device. Bootstraps NCCL if it is the first
// of its set. Puts its launches and calls on the streams when its turn comes,
// and polls for their end when all earlier operations have ended.
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
  // `on` and `backend` outlive the operation.
  // `communicator`: null for a set of one rank.
  GpuOperation(GpuBackend* backend, OperationSpec spec, size_t me,
               GpuBackend::OnDevice* on,
               std::shared_ptr<GpuCommunicator> communicator);
  ~GpuOperation() override;

  // Called once, right after construction.
  Status Plan();

  // Makes the ranks of the set bootstrap `nccl`, the communicator, first, by
  // messages of `host`. Called once, right after construction.
  Status Bootstrap(Backend* host, NcclCommunicator* nccl);

  Status Progress(int64_t budget_ns, Poll* poll) override;
  bool Abandon() override;

 private:
  void LeaveTurn();
  Status MoveBootstrap(int64_t budget_ns, Poll* poll);
  Status Connect();
  Status Put(Poll* poll);
  Status Begin();
  Status PutPack(const GpuPiece& piece);
  Status PutUnpack(const GpuPiece& piece);
  Status PutEnd();
  Status PutStep(const GpuStep& step);
  Status Launch(CudaStream stream, const GpuMove& move);
  Status Launch(const GpuSum& sum);
  // Makes a stream wait for the inputs, and until nothing else uses the memory.
  Status WaitForInputs(GpuBackend::StreamKind stream, unsigned uses);
  Status WaitFor(GpuBackend::StreamKind stream, GpuBackend::StreamKind other);
  CudaStream StreamFor(GpuBackend::StreamKind kind) const {
    return on_->streams[kind];
  }
  char* NextRows(size_t bytes);
  // True if, by that time, none of its work is left on the streams.
  bool Drain(int64_t deadline_ns);
  bool HasFiredBy(const GpuEvent& event, int64_t deadline_ns);

  GpuBackend* const backend_;
  const OperationSpec spec_;
  const size_t me_;
  GpuBackend::OnDevice* const on_;
  const std::shared_ptr<GpuCommunicator> communicator_;
  std::unique_ptr<Operation> bootstrap_;    // null: none, or it has ended
  NcclCommunicator* connecting_ = nullptr;  // used when that has ended
  std::vector<PeerInfo> peers_;             // of all ranks
  PeerInfo mine_;                           // of this rank
  GpuPlan plan_;
  size_t piece_ = 0;     // of the plan
  size_t next_ = 0;      // of the piece
  bool packed_ = false;  // its pack is on a stream, if it has one
  GpuBackend::Rows rows_;
  size_t rows_used_ = 0;                     // bytes
  bool begun_ = false;                       // something is on a stream
  bool awaited_[GpuBackend::kStreams] = {};  // inputs, by these streams
  // Of the last piece; null: it uses no shared memory.
  std::shared_ptr<GpuEvent> unpacked_;
  std::shared_ptr<GpuEvent> ended_;  // null: not all is on the streams yet
  bool inputs_made_ = false;         // as of the last poll
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_GPU_OPERATION_H_
