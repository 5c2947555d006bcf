// NcclCommunicator: NCCL between the ranks of one process set, as seen by one
// of them. It does not block: operations that take time are polled. Only ending
// it may take time, with a limit.
//
// One thread at a time: the holder of the progress lock, except for End.
#ifndef TF_HVD_RUNTIME_TRANSPORT_GPU_NCCL_COMMUNICATOR_H_
#define TF_HVD_RUNTIME_TRANSPORT_GPU_NCCL_COMMUNICATOR_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "runtime/transport/gpu/communicator.h"
#include "runtime/transport/gpu/device.h"
#include "runtime/transport/gpu/nccl_api.h"
#include "runtime/transport/gpu/plan.h"

namespace tf_hvd {

// An error of NCCL with its last message: "ncclAllReduce failed: unhandled
// system error (...)". Ok if `error` is none or in progress.
Status FromNccl(const NcclApi& api, const char* call, int error);

class NcclCommunicator final : public GpuCommunicator {
 public:
  // `api` outlives the communicator. Starts to connect; `Ready` reports when
  // all ranks are connected. `end_limit_ns`: the time limit for ending it.
  NcclCommunicator(const NcclApi* api, std::shared_ptr<GpuDevice> device,
                   int64_t end_limit_ns)
      : GpuCommunicator(std::move(device)),
        api_(api),
        end_limit_ns_(end_limit_ns) {}

  Status Begin(const NcclUniqueId& id, size_t ranks, size_t me);

  // Ready as soon as the last request has been accepted.
  Status Ready(bool* ready) override;
  Status Put(const GpuCall& call, CudaStream stream) override;

  // Aborts the calls in progress of all `communicators` concurrently, because a
  // call in one may wait for another. False if NCCL did not manage that in
  // time: memory of the calls may then still be written to.
  static bool AbortAll(
      const std::vector<std::shared_ptr<NcclCommunicator>>& all,
      int64_t limit_ns);

  // Ends it normally, or by abort if that takes too long; no call may be in
  // progress. Waits for the other ranks, so the progress lock must not be held.
  // Call this or AbortAll before the destructor.
  void End();

 private:
  // A function that aborts it, on any thread; refers to no object that may be
  // destroyed.
  std::function<void()> TakeForAbort();
  Status PutOne(const GpuCall& call, const GpuBuffer& buffer,
                CudaStream stream);
  // Submits several calls as one group.
  Status PutGroup(const std::function<Status()>& put);
  Status PutAlltoall(const GpuCall& call, CudaStream stream);
  Status Check(const char* call, int error) const {
    return FromNccl(*api_, call, error);
  }

  const NcclApi* const api_;
  const int64_t end_limit_ns_;
  size_t me_ = 0;  // this rank's place
  NcclComm comm_ = nullptr;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_GPU_NCCL_COMMUNICATOR_H_
