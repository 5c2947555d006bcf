// GpuBackend: collectives of tensors in GPU memory. Each device has streams of
// this backend for packing, NCCL calls and unpacking (plan.h); each stream has
// its operations in the agreed order. On the device they wait for TensorFlow's
// streams and for each other by events. Another event, polled when the device's
// host function rings, shows that an operation has ended. No thread waits for a
// device.
//
// A set of several ranks has an NCCL communicator, made by its first operation:
// its ranks exchange their identities through a host backend. If NCCL is not
// used, the set of all ranks has a communicator of a CUDA-aware MPI.
//
// As for Backend, called only by the holder of the progress lock.
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
  // Size per device of the memory with two halves for packed tensors. The same
  // on all ranks.
  size_t staging_bytes = size_t{64} << 20;
  GpuLimits limits;
  // Called by a device when an operation has ended, to wake the polling thread:
  // at any time, also after the backend was destroyed (device_bell.h). Null: no
  // thread sleeps.
  HostFunction ring;
  // Whether ranks may share a device, which NCCL allows if each of them claims
  // to be on a separate host (NCCL_HOSTID).
  bool shared_devices = false;
  // Time limit for ending an NCCL communicator, either normally or by abort.
  int64_t end_limit_ns = 10 * kSecond;
  // Kinds that several ranks do not execute through NCCL.
  std::set<OpKind> not_by_nccl;
  // Makes a communicator of all ranks for a device, for operations that
  // MpiCanDo. Null unless all ranks' MPI is CUDA-aware.
  std::function<std::shared_ptr<GpuCommunicator>(std::shared_ptr<GpuDevice>)>
      connect_by_mpi;
};

class GpuBackend final : public Backend {
 public:
  // `devices`, and the objects in `hosts`, outlive the backend. `nccl`: null
  // unless all ranks have it. `names`: "rank 3 (host)", by rank. `hosts`: the
  // backends for host memory, in the order in which they are asked.
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

  // Ends all communicators: normally, together with all ranks, or by abort. No
  // operation is in progress.
  void Close(bool clean);

  // For tests: the number of communicators that it holds, including ending
  // ones.
  size_t kept() const { return communicators_.size() + ending_.size(); }

 private:
  friend class GpuOperation;

  enum StreamKind { kPack, kCalls, kUnpack, kBell, kStreams };

  // This rank's state on one of its devices.
  struct OnDevice {
    std::shared_ptr<GpuDevice> device;
    CudaStream streams[kStreams] = {};
    std::shared_ptr<char> staging;
    GpuMemory half = kFirstHalf;  // used next
    std::shared_ptr<char> spare;  // null until a rank that joined needs it
    // When the last use of each GpuMemory ends.
    std::shared_ptr<GpuEvent> last_uses[kGpuMemories];
    // All entirely on the streams, in their order.
    std::deque<GpuOperation*> running;
  };
  // Pinned memory with the rows of an operation's launches. It is reused.
  struct Rows {
    std::shared_ptr<char> memory;
    size_t bytes = 0;
    int ordinal = -1;
  };

  // Whether a kind of collective uses NCCL or MPI; operations that these do not
  // support go through host memory.
  bool TakesNccl(OpKind kind) const;
  bool ByNccl(const OperationSpec& spec) const;
  bool ByMpi(const OperationSpec& spec) const;
  Status OnDeviceOf(const OperationSpec& spec, OnDevice** on);
  // `host`: the backend through which the ranks bootstrap a new NCCL
  // communicator; null for existing ones.
  Status CommunicatorOf(const OperationSpec& spec, const OnDevice& on,
                        std::shared_ptr<GpuCommunicator>* communicator,
                        Backend** host);
  Status TakeRows(const OnDevice& on, size_t bytes, Rows* rows);
  Status AddRows(const std::shared_ptr<GpuDevice>& device, size_t blocks,
                 size_t bytes);
  // Memory for the needs of any plan; at least `bytes`.
  Status Spare(OnDevice* on, size_t bytes, char** memory);
  // Keeps memory that may still be written to until the process exits.
  void KeepMemory();
  void GiveBack(Rows rows) { free_rows_.push_back(std::move(rows)); }
  Status FindHost(const OperationSpec& spec, Backend** host) const;
  // False if memory may still be written to.
  bool AbortAll();
  std::shared_ptr<NcclCommunicator> NewCommunicator(
      const std::shared_ptr<GpuDevice>& device);
  // Forgets communicators that have ended.
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
  // Operations that are not entirely on the streams yet, in the agreed order:
  // only the first may add to the streams.
  std::deque<GpuOperation*> putting_;
  std::vector<Rows> free_rows_;
  // All communicators; and those that were ending at the last check.
  std::vector<std::weak_ptr<NcclCommunicator>> communicators_;
  std::vector<std::future<void>> ending_;
  bool aborted_ = false;
  bool abort_ended_ = true;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_GPU_BACKEND_H_
