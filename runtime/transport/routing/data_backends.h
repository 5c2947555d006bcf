// DataBackends: the backends of a rank, in the order in which they are asked.
// The first that serves an operation gets it:
//
//   shm        all members of the set share this node
//   two_level  some node has several members; all but alltoall and Adasum
//   p2p        everything else
//
// and for tensors in GPU memory
//
//   gpu        through NCCL; sets of one rank without it
//   pinned     through host memory and the backends above, in their order
//
// The list is the same on all ranks.
#ifndef TF_HVD_RUNTIME_TRANSPORT_ROUTING_DATA_BACKENDS_H_
#define TF_HVD_RUNTIME_TRANSPORT_ROUTING_DATA_BACKENDS_H_

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/contract/operation.h"
#include "runtime/contract/point_to_point.h"
#include "runtime/contract/world.h"
#include "runtime/transport/gpu/access.h"
#include "runtime/transport/gpu/backend.h"
#include "runtime/transport/gpu/device_bell.h"
#include "runtime/transport/gpu/pinned_backend.h"
#include "runtime/transport/p2p/backend.h"
#include "runtime/transport/routing/two_level.h"
#include "runtime/transport/segment/arena.h"
#include "runtime/transport/shm/backend.h"

namespace tf_hvd {

class DataBackends {
 public:
  // `arena`: of this node; empty if the job's data moves by messages. `p2p`,
  // and the objects that `wake` uses, outlive the backends.
  DataBackends(const Topology& topology, const std::optional<ShmArena>& arena,
               ShmBackend::Wake wake, PointToPoint* p2p, Doorbell* doorbell,
               const GpuAccess& gpu = GpuAccess(),
               SlotOptions slots = SlotOptions());

  // Whether a job's nodes need shared memory for data, if allowed: a node with
  // one rank has such memory only if other nodes have several ranks.
  static bool NeedArenas(const Topology& topology);

  std::vector<Backend*> all() { return all_; }
  GpuDevices* gpus() { return gpu_access_.devices.get(); }

  // No operation is in progress any more. After an orderly end (`clean`) it
  // waits for the other ranks.
  void Close(bool clean) {
    if (gpu_.has_value()) gpu_->Close(clean);
    bell_.reset();
  }

  // For the log: "through shared memory within a machine, by messages ...".
  std::string Describe() const;

 private:
  std::string DescribeHost() const;
  void AddGpus(const Topology& topology, Doorbell* doorbell);

  P2PBackend p2p_;
  std::optional<ShmBackend> shm_;
  std::optional<TwoLevelBackend> two_level_;
  std::optional<DeviceBell> bell_;
  GpuAccess gpu_access_;
  std::optional<GpuBackend> gpu_;
  std::deque<PinnedBackend> pinned_;
  std::function<void(const std::string&)>
      warn_;  // null after the first warning
  std::vector<Backend*> all_;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_ROUTING_DATA_BACKENDS_H_
