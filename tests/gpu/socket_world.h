// SocketWorld: the ranks of a job as processes of one machine that one process
// has forked, joined by sockets. A World for programs that have no MPI: each
// rank has an environment of its own, which is where NCCL reads its settings.
//
// Data goes by messages; everything is copied once more than it must be.
#ifndef TF_HVD_TESTS_GPU_SOCKET_WORLD_H_
#define TF_HVD_TESTS_GPU_SOCKET_WORLD_H_

#include <memory>
#include <vector>

#include "runtime/contract/world.h"
#include "runtime/transport/gpu/access.h"

namespace tf_hvd {

// A socket between each two ranks. Made before the processes are forked.
class SocketMesh {
 public:
  explicit SocketMesh(int ranks);

  int ranks() const { return ranks_; }
  // Called once, in the rank's process: its sockets by rank, -1 for itself. It
  // closes all others.
  std::vector<int> Take(int rank);
  // Called in the process that has no rank.
  void CloseAll() { static_cast<void>(Take(-1)); }

 private:
  const int ranks_;
  std::vector<std::vector<int>> ends_;  // by rank, and other rank
};

std::unique_ptr<World> MakeSocketWorld(SocketMesh* mesh, int rank,
                                       const GpuAccess& gpu);

}  // namespace tf_hvd

#endif  // TF_HVD_TESTS_GPU_SOCKET_WORLD_H_
