// Loopback: N ranks in one process. How the runtime is tested, and what a
// single rank runs on.
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
  // Number of ranks on each pretended node.
  std::vector<int> nodes = {1};
  // What the hosts are called; empty: "node0", "node1" and so on.
  std::string host;
  // Bytes that an edge holds before a write takes only a part.
  size_t edge_bytes = 64 * 1024;
  // Of the tree of leaders, for tests.
  int fan_out = kFanOut;
  // What each rank has for tensors on GPUs; null: nothing.
  std::function<GpuAccess(int rank)> gpu;
};

// One World for each rank: the ranks count up through the nodes. The worlds
// share state and may be used, and destroyed, on different threads in any
// order. No threads are started. edge() is null for ranks that are no
// neighbours in the tree (tree.h).
std::vector<std::unique_ptr<World>> MakeLoopback(
    const LoopbackOptions& options);

// Lets a rank of MakeLoopback die, for tests: its thread must use the world no
// more. The others learn it from their next PollAbort. Any thread.
void LoopbackKill(World* world);

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_LOOPBACK_LOOPBACK_H_
