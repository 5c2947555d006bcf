// The information that the ranks of a job exchange at init. All functions are
// collective: every rank calls them in the same order, and they may wait.
#ifndef TF_HVD_RUNTIME_TRANSPORT_MPI_SETUP_H_
#define TF_HVD_RUNTIME_TRANSPORT_MPI_SETUP_H_

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/status.h"
#include "runtime/contract/world.h"
#include "runtime/transport/gpu/access.h"
#include "runtime/transport/mpi/session.h"
#include "runtime/transport/segment/segment.h"

namespace tf_hvd {

struct NodeMap {
  Topology topology;
  MpiHandle node{nullptr};  // a communicator of this node's ranks
  // A communicator of all ranks, for tensors on GPUs; only if MPI is
  // CUDA-aware.
  std::optional<MpiHandle> gpus;
};

// Finds the ranks that share a machine. `ranks_per_node`: as in Config;
// `hosts`: from CompareSettings.
Status DiscoverNodes(const MpiSession& session, int ranks_per_node,
                     std::vector<std::string> hosts, NodeMap* map);

// Creates or maps the segment of this node's ranks and marks this rank alive in
// it. `has_arena`: tensors move through it.
Status ShareSegment(const MpiSession& session, const NodeMap& map,
                    bool has_arena, std::unique_ptr<ShmSegment>* segment);

// Ok on all ranks; or, on all ranks, the Status of the lowest rank that failed.
Status AgreeOnStatus(const MpiSession& session, const Topology& topology,
                     const Status& mine);

// Determines this rank's access to GPUs: NCCL if each rank with a driver has
// it, MPI if it is CUDA-aware on all ranks; in that case it makes map->gpus.
// `session` outlives the results. `not_by_nccl`: as in GpuOptions.
Status AgreeOnGpus(const MpiSession& session, const GpuLibraries& mine,
                   const std::set<OpKind>& not_by_nccl, NodeMap* map,
                   GpuAccess* gpu);

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_MPI_SETUP_H_
