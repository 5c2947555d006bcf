// NcclCommunicator: NCCL between the ranks of one process set, seen from one of
// them. It does not block: what takes time is asked for again and again. Only
// its end may take time, which is given a limit.
//
// One thread at a time; but for End, the holder of the progress lock.
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

// An error of NCCL's, with what it said last: "ncclAllReduce failed: unhandled
// system error (...)". Ok if `error` is none or in progress.
Status FromNccl(const NcclApi& api, const char* call, int error);

class NcclCommunicator final : public GpuCommunicator {
 public:
  // `api` outlives the communicator. Begins to connect; `Ready` tells when all
  // ranks have come.
  // `end_limit_ns`: what its end may take.
  NcclCommunicator(const NcclApi* api, std::shared_ptr<GpuDevice> device,
                   int64_t end_limit_ns)
      : GpuCommunicator(std::move(device)),
        api_(api),
        end_limit_ns_(end_limit_ns) {}

  Status Begin(const NcclUniqueId& id, size_t ranks, size_t me);

  // As soon as what was asked for last is under way.
  Status Ready(bool* ready) override;
  Status Put(const GpuCall& call, CudaStream stream) override;

  // Ends what is under way of all of them, by force, at once: what waits in one
  // may wait for another. False if NCCL did not manage to in time: then
  // something may still write to the memory of its calls.
  static bool AbortAll(
      const std::vector<std::shared_ptr<NcclCommunicator>>& all,
      int64_t limit_ns);

  // Ends it in peace, or by force if that takes too long; nothing is under way.
  // Waits for the other ranks, so not with the progress lock. To be called
  // before it is destroyed, or AbortAll.
  void End();

 private:
  // What ends it by force, on any thread; refers to nothing that may go.
  std::function<void()> TakeForAbort();
  Status PutOne(const GpuCall& call, const GpuBuffer& buffer,
                CudaStream stream);
  // Several calls that are put as one.
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
