// Loopback: N ranks in one process. Used by the runtime's tests and by jobs of
// a single rank.
#ifndef TF_HVD_RUNTIME_TRANSPORT_LOOPBACK_LOOPBACK_H_
#define TF_HVD_RUNTIME_TRANSPORT_LOOPBACK_LOOPBACK_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/contract/world.h"
#include "runtime/transport/routing/data_backends.h"

namespace tf_hvd {

struct LoopbackOptions {
  // Number of ranks on each simulated node.
  std::vector<int> nodes = {1};
  // Host name of all nodes; empty: "node0", "node1" and so on.
  std::string host;
  // Capacity of an edge in bytes; longer writes are partial.
  size_t edge_bytes = 64 * 1024;
  // For the tree of leaders; for tests.
  int fan_out = kFanOut;
  // Returns a rank's access to GPUs; null: no GPUs.
  std::function<GpuAccess(int rank)> gpu;
};

// One World for each rank; ranks are numbered node by node. The worlds share
// state and may be used, and destroyed, on different threads in any order. No
// threads are started. edge() is null for ranks that are not neighbours in the
// tree (tree.h).
std::vector<std::unique_ptr<World>> MakeLoopback(
    const LoopbackOptions& options);

// Simulates the death of a rank of MakeLoopback, for tests: its thread must not
// use the world any more. The other ranks detect it in their next PollAbort.
// Any thread.
void LoopbackKill(World* world);

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_LOOPBACK_LOOPBACK_H_
