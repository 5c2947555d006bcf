#include "runtime/transport/mpi/world.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/processes.h"
#include "runtime/agreement/tree.h"
#include "runtime/transport/liveness/abort_path.h"
#include "runtime/transport/liveness/finalize_barrier.h"
#include "runtime/transport/loopback/loopback.h"
#include "runtime/transport/mpi/edge.h"
#include "runtime/transport/mpi/point_to_point.h"
#include "runtime/transport/mpi/settings.h"
#include "runtime/transport/mpi/setup.h"
#include "runtime/transport/routing/data_backends.h"
#include "runtime/transport/segment/edge.h"
#include "runtime/transport/segment/fd_guard.h"

namespace tf_hvd {
namespace {

constexpr int kEdgeTag = 1;
constexpr int kAbortTag = 2;
constexpr int kDataTag = 3;

// Requests in progress at a clean end are tiny and already sent: MPI only needs
// to be polled.
constexpr int64_t kStopNs = 2 * kSecond;
constexpr int kStopLooks = 200;

// The local rank of a rank on this node.
int PlaceOnNode(const Topology& topology, int rank) {
  const auto& node =
      topology.nodes[static_cast<size_t>(topology.NodeOf(topology.rank))];
  return static_cast<int>(std::find(node.begin(), node.end(), rank) -
                          node.begin());
}

class MpiWorld : public World {
 public:
  MpiWorld(NodeMap map, std::unique_ptr<MpiSession> session,
           std::unique_ptr<ShmSegment> segment, const GpuAccess& gpu,
           SlotOptions slots)
      : map_(std::move(map)),
        session_(std::move(session)),
        segment_(std::move(segment)),
        p2p_(std::make_unique<MpiPointToPoint>(&session_->api(),
                                               session_->data(), kDataTag)),
        data_(std::make_unique<DataBackends>(
            map_.topology, segment_->arena(),
            [this](size_t local_rank) {
              segment_->doorbell(static_cast<int>(local_rank))->RingIfAsleep();
            },
            p2p_.get(), segment_->doorbell(map_.topology.LocalRank()), gpu,
            std::move(slots))) {
    abort_ = std::make_unique<AbortPath>(&map_.topology, segment_.get(),
                                         MakeFlood());
    MakeEdges();
    fd_guard_ = std::make_unique<FdGuard>([this] { FilesWereClosed(); });
  }

  ~MpiWorld() override {
    Finalize(false);
    if (clean_) return;
    // MPI may still write to these objects, and must not be waited for: they
    // are kept until the process exits.
    static_cast<void>(abort_.release());
    for (auto& item : mpi_edges_) static_cast<void>(item.second.release());
    static_cast<void>(data_.release());
    static_cast<void>(p2p_.release());
    static_cast<void>(session_.release());
    static_cast<void>(segment_.release());
  }

  const Topology& topology() const override { return map_.topology; }

  Edge* edge(int neighbour) override {
    const auto shm = shm_edges_.find(neighbour);
    if (shm != shm_edges_.end()) return shm->second.get();
    const auto mpi = mpi_edges_.find(neighbour);
    return mpi == mpi_edges_.end() ? nullptr : mpi->second.get();
  }

  Doorbell* doorbell() override {
    return segment_->doorbell(map_.topology.LocalRank());
  }

  bool SharesCore() override {
    return segment_->SharesCore(map_.topology.LocalRank());
  }

  std::vector<Backend*> backends() override { return data_->all(); }
  GpuDevices* gpus() override { return data_->gpus(); }
  std::string DescribeData() const override { return data_->Describe(); }

  void RaiseAbort(const AbortRecord& record) override { abort_->Raise(record); }

  std::optional<AbortRecord> PollAbort() override {
    if (finalized_) return std::nullopt;
    return abort_->Poll(NowNs());
  }

  void Finalize(bool clean) override {
    if (std::exchange(finalized_, true)) return;
    fd_guard_.reset();
    data_->Close(clean);
    segment_->MarkLeft(map_.topology.LocalRank());
    clean_ = clean && StopRequests();
    clean_ = EndsTogether(clean_);
    if (!clean_) return;
    const MpiApi& mpi = session_->api();
    mpi.comm_free(mpi.state, &map_.node);
    if (map_.gpus.has_value()) mpi.comm_free(mpi.state, &*map_.gpus);
    session_->Finalize();
  }

 private:
  // `ready`: this rank can finalize MPI. True if all ranks of the node can.
  bool EndsTogether(bool ready) {
    if (!session_->ends_mpi()) return ready;
    const Topology& topology = map_.topology;
    FinalizeBarrier barrier(segment_.get(), topology.LocalSize(),
                            topology.LocalRank());
    if (!ready) {
      barrier.Refuse();
      return false;
    }
    std::optional<FinalizeBarrier::Absent> absent;
    if (barrier.Wait(&absent)) return true;
    if (!absent.has_value())
      return false;  // another rank has logged the reason
    const auto& node =
        topology.nodes[static_cast<size_t>(topology.NodeOf(topology.rank))];
    const int rank = node[static_cast<size_t>(absent->local_rank)];
    const bool stopped = absent->life == Life::kStopped;
    WriteLog(LogLevel::kError, topology.RankText(topology.rank),
             topology.RankText(rank) +
                 (stopped ? " is stopped (SIGSTOP, or a debugger)"
                          : " has ended without shutdown()") +
                 ": MPI_Finalize, which would wait for it, is skipped; the "
                 "launcher may report this as an error");
    return false;
  }

  // Called on the fd guard's thread. The launcher may consider the process dead
  // and end the job before a rank can raise this error, so it is printed here.
  void FilesWereClosed() {
    const int rank = map_.topology.rank;
    const std::string who = map_.topology.RankText(rank);
    const std::string text =
        "the script has closed file descriptors that it did not open, such as "
        "those of tf_hvd and MPI (with os.closerange?), so the job cannot "
        "continue. Close only what the script opened; subprocess already "
        "closes inherited descriptors in a child";
    segment_->LoseFile(map_.topology.LocalRank());
    WriteLog(LogLevel::kError, who, text);
    RaiseAbort({AbortRecord::kFailed, rank, who + ": " + text});
  }

  std::unique_ptr<AbortFlood> MakeFlood() {
    if (map_.topology.nodes.size() == 1) return nullptr;
    return std::make_unique<AbortFlood>(&session_->api(), session_->control(),
                                        kAbortTag, FloodTargets(map_.topology));
  }

  void MakeEdges() {
    const TreePlace place =
        PlaceOf(map_.topology.rank, map_.topology.nodes, map_.topology.fan_out);
    std::vector<int> neighbours = place.children;
    if (place.parent >= 0) neighbours.push_back(place.parent);
    for (const int neighbour : neighbours) {
      if (map_.topology.NodeOf(neighbour) ==
          map_.topology.NodeOf(map_.topology.rank)) {
        MakeShmEdge(neighbour);
      } else {
        MakeMpiEdge(neighbour);
      }
    }
  }

  void MakeShmEdge(int neighbour) {
    const int mine = map_.topology.LocalRank();
    const int theirs = PlaceOnNode(map_.topology, neighbour);
    shm_edges_[neighbour] = std::make_unique<ShmEdge>(
        segment_->ring(mine, theirs), segment_->ring(theirs, mine),
        segment_->doorbell(theirs));
  }

  void MakeMpiEdge(int neighbour) {
    const auto on_error = [this, neighbour](const Status& status) {
      RaiseAbort({AbortRecord::kFailed, map_.topology.rank,
                  map_.topology.RankText(map_.topology.rank) +
                      " lost its connection to " +
                      map_.topology.RankText(neighbour) + ": " +
                      status.message()});
    };
    auto edge = std::make_unique<MpiEdge>(&session_->api(), session_->control(),
                                          kEdgeTag, neighbour, on_error);
    edge->Start();
    mpi_edges_[neighbour] = std::move(edge);
  }

  // If MPI is finalized here, which waits for all ranks, this also waits a
  // while for the neighbours' last messages.
  bool StopRequests() {
    const int64_t start_ns = NowNs();
    const int64_t patience_ns = session_->ends_mpi() ? kStopNs / 2 : 0;
    // Counts attempts as well as time: this thread may have had no core
    // meanwhile.
    for (int looks = 0;; ++looks) {
      const int64_t passed_ns = NowNs() - start_ns;
      bool over = abort_->Stop();
      for (auto& item : mpi_edges_) {
        over = item.second->Stop(passed_ns < patience_ns) && over;
      }
      if (over || (passed_ns > kStopNs && looks > kStopLooks)) return over;
      std::this_thread::yield();
    }
  }

  NodeMap map_;
  std::unique_ptr<MpiSession> session_;
  std::unique_ptr<ShmSegment> segment_;
  std::unique_ptr<MpiPointToPoint> p2p_;
  std::unique_ptr<DataBackends> data_;
  std::unique_ptr<AbortPath> abort_;
  std::unique_ptr<FdGuard> fd_guard_;
  std::map<int, std::unique_ptr<ShmEdge>> shm_edges_;
  std::map<int, std::unique_ptr<MpiEdge>> mpi_edges_;
  bool finalized_ = false;
  bool clean_ = false;
};

// A process without a launcher and without MPI is rank 0 of 1.
Status CheckSingle(const MpiMembers& members) {
  if (members.communicator.has_value()) {
    return InvalidArgument(
        "init(comm=<communicator of mpi4py>): tf_hvd cannot find a running MPI "
        "in this process; set TF_HVD_MPI_LIBRARY to the path of the libmpi "
        "that "
        "mpi4py uses");
  }
  if (members.ranks.value_or(std::vector<int>{0}) == std::vector<int>{0}) {
    return Status::Ok();
  }
  return InvalidArgument(
      "init(comm=<list of ranks>): this process was started without a "
      "launcher, so [0] is the only valid list; start the job with 'tf_hvd "
      "run' or mpirun");
}

GpuSearch GpuSearchOf(const WorldOptions& options) {
  return {options.config.cuda_library, options.config.nccl_library,
          options.config.use_nccl, options.nccl_candidates};
}

}  // namespace

MpiSearch SearchOf(const WorldOptions& options) {
  return {options.config.mpi_library, options.launch, options.library_dir,
          options.candidates};
}

Status MakeWorld(const WorldOptions& options, std::unique_ptr<World>* world,
                 MpiInfo* info) {
  const MpiSearch search = SearchOf(options);
  const bool single = options.launch.size == 1 && !MpiIsRunning(search);
  if (single || options.config.standalone) {
    TF_HVD_RETURN_IF_ERROR(CheckSingle(options.members));
    LoopbackOptions one;
    one.host = HostName();
    one.gpu = [&](int) {
      const GpuLibraries libraries = OpenGpuLibraries(GpuSearchOf(options));
      return AccessOf(libraries, 0, libraries.no_nccl, /*on_all_ranks=*/true);
    };
    *world = std::move(MakeLoopback(one).front());
    return Status::Ok();
  }
  std::unique_ptr<MpiSession> session;
  TF_HVD_RETURN_IF_ERROR(MpiSession::Start(search, options.members, &session));
  if (info != nullptr) *info = session->info();
  std::vector<std::string> hosts;
  std::string doubts;
  TF_HVD_RETURN_IF_ERROR(
      CompareSettings(*session, options.settings, &hosts, &doubts));
  if (!doubts.empty() && options.config.log_level <= LogLevel::kWarning) {
    WriteLog(LogLevel::kWarning, RankText(0, hosts), doubts);
  }
  NodeMap map;
  TF_HVD_RETURN_IF_ERROR(DiscoverNodes(*session, options.config.ranks_per_node,
                                       std::move(hosts), &map));
  std::unique_ptr<ShmSegment> segment;
  TF_HVD_RETURN_IF_ERROR(
      ShareSegment(*session, map, options.config.node_data_shm, &segment));
  GpuAccess gpu;
  TF_HVD_RETURN_IF_ERROR(AgreeOnGpus(*session,
                                     OpenGpuLibraries(GpuSearchOf(options)),
                                     options.config.gpu_by_mpi, &map, &gpu));
  if (options.config.use_nccl) {
    gpu.warn = WarnForMachine(map.topology, options.config.log_level);
  }
  SlotOptions slots;
  slots.stores = options.config.slot_stores;
  if (options.config.log_level <= LogLevel::kDebug) {
    slots.log = [who = map.topology.RankText(map.topology.rank)](
                    const std::string& text) {
      WriteLog(LogLevel::kDebug, who, text);
    };
  }
  session->MarkInUse();
  *world =
      std::make_unique<MpiWorld>(std::move(map), std::move(session),
                                 std::move(segment), gpu, std::move(slots));
  return Status::Ok();
}

}  // namespace tf_hvd
