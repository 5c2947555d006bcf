// What the ranks of a job find out about each other at init. All functions are
// collective: every rank calls them in the same order, and may wait.
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
  // Of all ranks, for tensors on GPUs; if MPI is CUDA-aware.
  std::optional<MpiHandle> gpus;
};

// Who shares a machine with whom. `ranks_per_node`: as in Config; `hosts`: of
// CompareSettings.
Status DiscoverNodes(const MpiSession& session, int ranks_per_node,
                     std::vector<std::string> hosts, NodeMap* map);

// Makes the segment of this node's ranks and claims this rank alive in it.
// `has_arena`: tensors move through it.
Status ShareSegment(const MpiSession& session, const NodeMap& map,
                    bool has_arena, std::unique_ptr<ShmSegment>* segment);

// Ok on all ranks, or on all ranks the Status of the lowest one that failed.
Status AgreeOnStatus(const MpiSession& session, const Topology& topology,
                     const Status& mine);

// What this rank has for tensors on GPUs: NCCL if each rank with a driver has
// it, MPI if it is CUDA-aware on all ranks; then makes map->gpus. `session`
// outlives what is made of it. `not_by_nccl`: as in GpuOptions.
Status AgreeOnGpus(const MpiSession& session, const GpuLibraries& mine,
                   const std::set<OpKind>& not_by_nccl, NodeMap* map,
                   GpuAccess* gpu);

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_MPI_SETUP_H_
