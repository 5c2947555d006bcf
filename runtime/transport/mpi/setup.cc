#include "runtime/transport/mpi/setup.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "runtime/transport/gpu/mpi_communicator.h"
#include "runtime/transport/mpi_library/library.h"
#include "runtime/transport/routing/data_backends.h"

namespace tf_hvd {
namespace {

struct Outcome {
  int32_t code;
  char text[1020];
};

template <size_t kSize>
void CopyText(const std::string& text, char (*to)[kSize]) {
  const size_t length = std::min(text.size(), kSize - 1);
  std::memcpy(*to, text.data(), length);
  (*to)[length] = '\0';
}

template <typename T>
Status Gather(const MpiSession& session, const T& mine, std::vector<T>* all) {
  all->resize(static_cast<size_t>(session.size()));
  return session.Gather(&mine, sizeof(T), all->data());
}

Status SplitByNode(const MpiSession& session, int ranks_per_node,
                   MpiHandle* node) {
  const MpiApi& mpi = session.api();
  if (ranks_per_node > 0) {
    return MpiResult(mpi, "MPI_Comm_split",
                     mpi.split(mpi.state, session.control(),
                               session.rank() / ranks_per_node, node));
  }
  return MpiResult(mpi, "MPI_Comm_split_type",
                   mpi.split_shared(mpi.state, session.control(), node));
}

}  // namespace

Status DiscoverNodes(const MpiSession& session, int ranks_per_node,
                     std::vector<std::string> hosts, NodeMap* map) {
  const MpiApi& mpi = session.api();
  TF_HVD_RETURN_IF_ERROR(SplitByNode(session, ranks_per_node, &map->node));
  int32_t leader = session.rank();
  TF_HVD_RETURN_IF_ERROR(MpiResult(
      mpi, "MPI_Bcast",
      mpi.broadcast(mpi.state, &leader, sizeof(leader), 0, map->node)));
  std::vector<int32_t> leaders;
  TF_HVD_RETURN_IF_ERROR(Gather(session, leader, &leaders));

  std::map<int32_t, std::vector<int>> nodes;  // by their first rank
  for (size_t i = 0; i < leaders.size(); ++i) {
    nodes[leaders[i]].push_back(static_cast<int>(i));
  }
  Topology& topology = map->topology;
  topology.rank = session.rank();
  topology.size = session.size();
  std::vector<std::vector<int>> in_order;
  for (const auto& [first, ranks] : nodes) in_order.push_back(ranks);
  topology.nodes = std::move(in_order);
  topology.hosts = std::move(hosts);
  return Status::Ok();
}

Status AgreeOnStatus(const MpiSession& session, const Topology& topology,
                     const Status& mine) {
  Outcome outcome = {};
  outcome.code = static_cast<int32_t>(mine.code());
  CopyText(mine.message(), &outcome.text);
  std::vector<Outcome> all;
  TF_HVD_RETURN_IF_ERROR(Gather(session, outcome, &all));
  for (size_t i = 0; i < all.size(); ++i) {
    const auto code = static_cast<StatusCode>(all[i].code);
    if (code == StatusCode::kOk) continue;
    return Status(code,
                  topology.RankText(static_cast<int>(i)) + ": " + all[i].text);
  }
  return Status::Ok();
}

Status ShareSegment(const MpiSession& session, const NodeMap& map,
                    bool has_arena, std::unique_ptr<ShmSegment>* segment) {
  const MpiApi& mpi = session.api();
  const int local_rank = map.topology.LocalRank();
  const int local_size = map.topology.LocalSize();
  const ShmShape shape = {local_size,
                          has_arena && DataBackends::NeedArenas(map.topology)};
  Status status;
  char name[64] = "";  // remains empty if the leader failed
  if (local_rank == 0) {
    status = ShmSegment::Create(shape, segment);
    if (status.ok()) CopyText((*segment)->name(), &name);
  }
  TF_HVD_RETURN_IF_ERROR(
      MpiResult(mpi, "MPI_Bcast",
                mpi.broadcast(mpi.state, name, sizeof(name), 0, map.node)));
  if (local_rank != 0 && name[0] != '\0') {
    status = ShmSegment::Attach(name, shape, segment);
  }
  if (status.ok() && *segment != nullptr) {
    status = (*segment)->ReserveSlots(local_rank);
  }
  if (status.ok() && *segment != nullptr) {
    status = (*segment)->ClaimAlive(local_rank);
  }
  // No rank continues before all have attached and claimed.
  status = AgreeOnStatus(session, map.topology, status);
  if (*segment != nullptr) (*segment)->RemoveName();
  return status;
}

Status AgreeOnGpus(const MpiSession& session, const GpuLibraries& mine,
                   const std::set<OpKind>& not_by_nccl, NodeMap* map,
                   GpuAccess* gpu) {
  const MpiApi& mpi = session.api();
  const Topology& topology = map->topology;
  GpuLibrariesInfo info = InfoOf(mine);
  info.cuda_aware = session.info().cuda_aware ? 1 : 0;
  std::vector<GpuLibrariesInfo> infos;
  TF_HVD_RETURN_IF_ERROR(Gather(session, info, &infos));
  *gpu =
      AccessOf(mine, topology.LocalRank(),
               NoNcclText(infos, topology.RankTexts()), AllHaveDrivers(infos));
  gpu->options.not_by_nccl = not_by_nccl;
  if (!AllAreCudaAware(infos)) return Status::Ok();
  map->gpus.emplace();
  TF_HVD_RETURN_IF_ERROR(MpiResult(
      mpi, "MPI_Comm_dup", mpi.dup(mpi.state, session.data(), &*map->gpus)));
  gpu->options.connect_by_mpi =
      [api = &mpi, comm = *map->gpus, me = topology.rank,
       ranks = topology.size](std::shared_ptr<GpuDevice> device) {
        return std::make_shared<MpiCommunicator>(api, comm, me, ranks,
                                                 std::move(device));
      };
  return Status::Ok();
}

}  // namespace tf_hvd
