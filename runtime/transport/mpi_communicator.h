// MpiCommunicator: collectives on the memory of GPUs by an MPI that reads and
// writes it by itself ("CUDA-aware"), where there is no NCCL or MPI was asked
// for. MPI knows nothing of streams: a call begins when what was put on the
// stream before it has been done, and what comes behind it is put there when
// the call has ended.
//
// As GpuCommunicator: holder of the progress lock only. Calls of a communicator
// are matched by their order, which is that of the stream.
#ifndef TF_HVD_RUNTIME_TRANSPORT_MPI_COMMUNICATOR_H_
#define TF_HVD_RUNTIME_TRANSPORT_MPI_COMMUNICATOR_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "runtime/status.h"
#include "runtime/transport/gpu/gpu_communicator.h"
#include "runtime/transport/mpi_api.h"

namespace tf_hvd {

class MpiCommunicator final : public GpuCommunicator {
 public:
  // `comm` is of the ranks of the operations and has no other traffic; `api`
  // outlives the communicator. `me`: this rank in it.
  MpiCommunicator(const MpiApi* api, MpiHandle comm, int me,
                  std::shared_ptr<GpuDevice> device)
      : GpuCommunicator(std::move(device)), api_(api), comm_(comm), me_(me) {}

  Status Ready(bool* ready) override;
  Status Put(const NcclCall& call, CudaStream stream) override;

  bool at_rest() const override { return requests_.empty(); }

 private:
  Status Post();
  Status PostAllreduce();
  Status PostReducescatter();
  Status PostAllgather();
  Status PostBroadcast();
  Status PostAlltoall();
  Status Exchange(size_t peer, const char* send, char* receive);
  Status Check(const char* call, int error, MpiHandle request);
  Status Test(bool* done);
  size_t bytes() const;  // of the call's count

  const MpiApi* const api_;
  const MpiHandle comm_;
  const int me_;
  NcclCall call_;
  CudaStream stream_ = nullptr;
  // What the stream was to do before the call; null: it has been posted.
  std::shared_ptr<GpuEvent> before_;
  std::vector<MpiHandle> requests_;
  // Left to be copied when they have ended: MPI's results lie elsewhere.
  const void* copy_from_ = nullptr;
  void* copy_to_ = nullptr;
  size_t copy_bytes_ = 0;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_MPI_COMMUNICATOR_H_
