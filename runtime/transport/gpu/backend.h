// GpuBackend: collectives of tensors in the memory of GPUs. Each device has
// streams of ours that pack, call NCCL and unpack (plan.h), on each of which
// operations lie in the agreed order. They wait for TensorFlow's and for each
// other by events, on the device; that an operation has ended is found by
// looking at another event, for which a host function of the device's rings.
// No thread waits for a device.
//
// A set of several ranks has a communicator of NCCL, made when its first
// operation comes: its ranks exchange, by a host's backend, who they are. Where
// NCCL is not to be used, the set of all ranks has one of a CUDA-aware MPI.
//
// As Backend: holder of the progress lock only.
#ifndef TF_HVD_RUNTIME_TRANSPORT_GPU_BACKEND_H_
#define TF_HVD_RUNTIME_TRANSPORT_GPU_BACKEND_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "runtime/contract/operation.h"
#include "runtime/transport/gpu/devices.h"
#include "runtime/transport/gpu/nccl_communicator.h"
#include "runtime/transport/gpu/plan.h"

namespace tf_hvd {

class GpuOperation;

struct GpuOptions {
  // Of each device: in its halves tensors are put together. The same on all
  // ranks.
  size_t staging_bytes = size_t{64} << 20;
  GpuLimits limits;
  // Wakes whoever looks, when an operation has ended: at any time, also after
  // the backend is gone (device_bell.h). Null: nobody sleeps.
  HostFunction ring;
  // Whether ranks may share a device, as NCCL allows it where each of them
  // claims to be on a host of its own (NCCL_HOSTID).
  bool shared_devices = false;
  // What NCCL may take to end a communicator, in peace or by force.
  int64_t end_limit_ns = 10 * kSecond;
  // Of these NCCL serves none of several ranks.
  std::set<OpKind> not_by_nccl;
  // Makes a communicator of all ranks for a device, for what MpiCanDo. Null
  // unless all ranks' MPI is CUDA-aware.
  std::function<std::shared_ptr<GpuCommunicator>(std::shared_ptr<GpuDevice>)>
      connect_by_mpi;
};

class GpuBackend final : public Backend {
 public:
  // `devices`, and what `hosts` hold, outlive the backend. `nccl`: null unless
  // all ranks have it. `names`: "rank 3
  // (host)", by rank. `hosts`: the backends for memory of the host, in the
  // order in which they are asked.
  GpuBackend(GpuDevices* devices, const NcclApi* nccl, int rank,
             std::vector<std::string> names, std::vector<Backend*> hosts,
             const GpuOptions& options);
  ~GpuBackend() override;
  std::string_view name() const override { return "nccl"; }

  bool Serves(const OperationSpec& spec) const override;
  Status Make(OperationSpec spec,
              std::unique_ptr<Operation>* operation) override;
  size_t window() const override { return 8; }
  void SetRemoved(int32_t set) override;

  // Ends all communicators: in peace, all ranks together, or by force. No
  // operation is under way.
  void Close(bool clean);

  // For tests: what it keeps of communicators, and of their ends.
  size_t kept() const { return communicators_.size() + ending_.size(); }

 private:
  friend class GpuOperation;

  enum StreamKind { kPack, kCalls, kUnpack, kBell, kStreams };

  // What this rank has on one of its devices.
  struct OnDevice {
    std::shared_ptr<GpuDevice> device;
    CudaStream streams[kStreams] = {};
    std::shared_ptr<char> staging;
    GpuMemory half = kFirstHalf;  // that comes next
    std::shared_ptr<char> spare;  // null until a rank that joined needs it
    // When the last use of each GpuMemory will have ended.
    std::shared_ptr<GpuEvent> last_uses[kGpuMemories];
    std::deque<GpuOperation*> running;  // all on the streams, in their order
  };
  // Pinned memory for what an operation's launches read. It is kept.
  struct Rows {
    std::shared_ptr<char> memory;
    size_t bytes = 0;
    int ordinal = -1;
  };

  // One way for each kind of collective: NCCL, or MPI; and the host's memory
  // for what that cannot do.
  bool TakesNccl(OpKind kind) const;
  bool ByNccl(const OperationSpec& spec) const;
  bool ByMpi(const OperationSpec& spec) const;
  Status OnDeviceOf(const OperationSpec& spec, OnDevice** on);
  // `host`: by which the ranks of a new communicator of NCCL bootstrap it; null
  // for all others.
  Status CommunicatorOf(const OperationSpec& spec, const OnDevice& on,
                        std::shared_ptr<GpuCommunicator>* communicator,
                        Backend** host);
  Status TakeRows(const OnDevice& on, size_t bytes, Rows* rows);
  Status AddRows(const std::shared_ptr<GpuDevice>& device, size_t blocks,
                 size_t bytes);
  // As much memory as any plan needs; at least `bytes`.
  Status Spare(OnDevice* on, size_t bytes, char** memory);
  // What may still be written to is kept for as long as the process.
  void KeepMemory();
  void GiveBack(Rows rows) { free_rows_.push_back(std::move(rows)); }
  Status FindHost(const OperationSpec& spec, Backend** host) const;
  // False if something may still write to memory.
  bool AbortAll();
  std::shared_ptr<NcclCommunicator> NewCommunicator(
      const std::shared_ptr<GpuDevice>& device);
  // What is left of communicators that have ended.
  void ForgetEnded();

  GpuDevices* const devices_;
  const NcclApi* const nccl_;
  const int rank_;
  const std::vector<std::string> names_;
  const std::vector<Backend*> hosts_;
  const GpuOptions options_;
  std::map<int, OnDevice> on_devices_;  // by ordinal
  std::map<int32_t, std::shared_ptr<NcclCommunicator>> communicators_by_set_;
  std::shared_ptr<GpuCommunicator> by_mpi_;  // of all ranks; null until used
  // Operations that are not all on the streams yet, in the agreed order: the
  // first may put more there.
  std::deque<GpuOperation*> putting_;
  std::vector<Rows> free_rows_;
  // All; and those whose ends are under way, or were when it was last looked.
  std::vector<std::weak_ptr<NcclCommunicator>> communicators_;
  std::vector<std::future<void>> ending_;
  bool aborted_ = false;
  bool abort_ended_ = true;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_GPU_BACKEND_H_
