// SocketWorld: the ranks of a job as processes that one process forked,
// connected by sockets. A World for programs without MPI. Each rank has a
// separate environment, from which NCCL reads its settings.
//
// Data is sent as messages, with one copy more than necessary.
#ifndef TF_HVD_TESTS_GPU_SOCKET_WORLD_H_
#define TF_HVD_TESTS_GPU_SOCKET_WORLD_H_

#include <memory>
#include <vector>

#include "runtime/contract/world.h"
#include "runtime/transport/gpu/access.h"

namespace tf_hvd {

// One socket per pair of ranks. Create it before forking the processes.
class SocketMesh {
 public:
  explicit SocketMesh(int ranks);

  int ranks() const { return ranks_; }
  // Call it once in the rank's process. Returns its sockets by rank, -1 for
  // itself, and closes all others.
  std::vector<int> Take(int rank);
  // Call it in the process without a rank.
  void CloseAll() { static_cast<void>(Take(-1)); }

 private:
  const int ranks_;
  std::vector<std::vector<int>> ends_;  // by rank, and other rank
};

std::unique_ptr<World> MakeSocketWorld(SocketMesh* mesh, int rank,
                                       const GpuAccess& gpu);

}  // namespace tf_hvd

#endif  // TF_HVD_TESTS_GPU_SOCKET_WORLD_H_
