// MpiCommunicator: allgather, broadcast and alltoall on the memory of GPUs by
// messages of an MPI that reads and writes it by itself ("CUDA-aware"), where
// there is no NCCL or MPI was asked for. By messages alone: Open MPI's
// collectives that do not wait are not CUDA-aware, as its documentation says,
// and its blocking ones copy what they reduce to the host's memory. Sums are
// made of these (sum_plan.h).
//
// MPI knows nothing of streams: messages leave when what was put on the stream
// before the call has been done, and what comes behind it is put there when
// they have come.
//
// As GpuCommunicator: holder of the progress lock only. The ranks make the same
// calls in the same order, one at a time: by that messages are matched.
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
  // `comm` is of `ranks` ranks and has no other traffic; `api` outlives the
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

  // What the call consists of.
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
  // What the stream was to do before the call; null: its messages are posted.
  std::shared_ptr<GpuEvent> before_;
  std::vector<Message> messages_;
  std::vector<Message> then_;        // when all of those have ended
  std::vector<MpiHandle> requests_;  // under way
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_GPU_MPI_COMMUNICATOR_H_
