// The world of a job whose ranks are processes: MPI between nodes, shared
// memory inside them. And the choice of the world that a process lives in.
#ifndef TF_HVD_RUNTIME_TRANSPORT_MPI_WORLD_H_
#define TF_HVD_RUNTIME_TRANSPORT_MPI_WORLD_H_

#include <memory>
#include <string>
#include <vector>

#include "base/config.h"
#include "base/status.h"
#include "runtime/contract/world.h"
#include "runtime/transport/mpi/session.h"

namespace tf_hvd {

struct WorldOptions {
  Config config;
  LaunchInfo launch;
  std::string library_dir;              // where the shims for the families lie
  std::vector<std::string> candidates;  // libmpi of the Python environment
  MpiMembers members;
  Settings settings;  // what must be equal on all ranks, by name
  std::vector<std::string> nccl_candidates;  // libnccl of that environment
};

MpiSearch SearchOf(const WorldOptions& options);

// One rank without MPI where no launcher started more and nobody initialised
// MPI; else the job's world. Never one of N worlds of one rank each: where the
// launcher and MPI do not count alike, or MPI cannot be opened, it fails.
//
// `info`, if not null, stays empty without MPI. Collective: called on all ranks
// (MpiSession::Start has the details), on the thread that MPI shall take for
// main.
Status MakeWorld(const WorldOptions& options, std::unique_ptr<World>* world,
                 MpiInfo* info = nullptr);

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_MPI_WORLD_H_
