// MpiCommunicator: allgather, broadcast and alltoall on GPU memory by messages
// of an MPI that accesses it directly ("CUDA-aware"). Used without NCCL, or if
// MPI was requested. It uses messages only: Open MPI's non-blocking collectives
// are not CUDA-aware, according to its documentation, and its blocking
// reductions copy the data to host memory. Sums consist of these operations
// (sum_plan.h).
//
// MPI does not know streams. Messages are sent when the work before the call on
// the stream is done, and the work after the call is put there when they have
// arrived.
//
// As for GpuCommunicator, called only by the holder of the progress lock. The
// ranks make the same calls in the same order, one at a time, so that messages
// match.
#ifndef TF_HVD_RUNTIME_TRANSPORT_GPU_MPI_COMMUNICATOR_H_
#define TF_HVD_RUNTIME_TRANSPORT_GPU_MPI_COMMUNICATOR_H_

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "base/status.h"
#include "runtime/transport/gpu/communicator.h"
#include "runtime/transport/mpi_library/api.h"

namespace tf_hvd {

class MpiCommunicator final : public GpuCommunicator {
 public:
  // `comm` has `ranks` ranks and no other traffic; `api` outlives the
  // communicator. `me`: this rank in it.
  MpiCommunicator(const MpiApi* api, MpiHandle comm, int me, int ranks,
                  std::shared_ptr<GpuDevice> device)
      : GpuCommunicator(std::move(device)),
        api_(api),
        comm_(comm),
        me_(me),
        ranks_(ranks) {}

  Status Ready(bool* ready) override;
  Status Put(const GpuCall& call, CudaStream stream) override;
  bool reduces() const override { return false; }
  bool at_rest() const override { return requests_.empty(); }

 private:
  // A run of bytes to, or from, another rank.
  struct Message {
    bool receives;
    int peer;
    const char* data;
    size_t bytes;
  };

  // Writes the messages of the call.
  Status Write(const GpuCall& call, CudaStream stream);
  void WriteAlltoall(const GpuCall& call);
  void WriteAllgather(const GpuCall& call);
  void WriteBroadcast(const GpuCall& call);
  void Send(int peer, const void* data, size_t bytes);
  void Receive(int peer, void* data, size_t bytes);
  Status Post(std::vector<Message>* messages);
  Status PostOne(const Message& message);
  Status TestAll(bool* ended);

  const MpiApi* const api_;
  const MpiHandle comm_;
  const int me_;
  const int ranks_;
  // The work on the stream before the call; null: its messages are posted.
  std::shared_ptr<GpuEvent> before_;
  std::vector<Message> messages_;
  std::vector<Message> then_;  // to be posted when all of those have ended
  std::vector<MpiHandle> requests_;  // in progress
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_GPU_MPI_COMMUNICATOR_H_
