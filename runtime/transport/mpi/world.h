// The world of a job with ranks as processes: MPI between nodes, shared memory
// inside them. Also chooses the world of a process.
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
  std::string library_dir;              // folder of the shims for the families
  std::vector<std::string> candidates;  // libmpi of the Python environment
  MpiMembers members;
  Settings settings;  // must be the same on all ranks, by name
  std::vector<std::string> nccl_candidates;  // libnccl of that environment
};

MpiSearch SearchOf(const WorldOptions& options);

// A world of one rank without MPI, if no launcher started more and MPI is not
// initialised; otherwise the job's world. Never one of N worlds of one rank
// each: if the launcher's and MPI's number of ranks differ, or MPI cannot be
// loaded, it fails.
//
// `info`, if not null, remains empty without MPI. Collective: called on all
// ranks (MpiSession::Start has the details), on the thread that is to be MPI's
// main thread.
Status MakeWorld(const WorldOptions& options, std::unique_ptr<World>* world,
                 MpiInfo* info = nullptr);

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_MPI_WORLD_H_
