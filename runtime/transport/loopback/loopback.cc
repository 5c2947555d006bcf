#include "runtime/transport/loopback/loopback.h"

#include <atomic>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "base/mutex.h"
#include "runtime/agreement/tree.h"
#include "runtime/transport/loopback/arena.h"
#include "runtime/transport/loopback/edge.h"
#include "runtime/transport/loopback/point_to_point.h"

namespace tf_hvd {
namespace {

// The state shared by the worlds of one job; lives as long as the last of them.
class Job {
 public:
  explicit Job(const LoopbackOptions& options);

  const Topology& topology() const { return topology_; }
  const std::shared_ptr<MailRoom>& mail() const { return mail_; }
  Doorbell* BellOf(int rank) { return &bells_[static_cast<size_t>(rank)]; }
  // The arena of that node's ranks.
  std::optional<ShmArena> ArenaOf(int node);
  // Null if the ranks are not neighbours.
  ByteRing* RingFrom(int sender, int receiver);

  void Raise(const AbortRecord& record);
  void Kill(int rank);
  std::optional<AbortRecord> Poll(int rank);

 private:
  // True if it is the smallest so far.
  bool Keep(const AbortRecord& record) REQUIRES(mutex_);

  Topology topology_;  // of rank 0
  std::shared_ptr<MailRoom> mail_;
  std::unique_ptr<Doorbell[]> bells_;
  std::map<std::pair<int, int>, std::unique_ptr<ByteRing>> rings_;
  // By node; null if not used.
  std::vector<std::unique_ptr<LoopbackArena>> arenas_;

  std::atomic<bool> troubled_{false};  // there is a record or a dead rank
  Mutex mutex_;
  std::optional<AbortRecord> record_ GUARDED_BY(mutex_);
  std::vector<int> dead_ GUARDED_BY(mutex_);
};

Job::Job(const LoopbackOptions& options) {
  topology_.fan_out = options.fan_out;
  topology_.size = 0;
  std::vector<std::vector<int>> nodes(options.nodes.size());
  std::vector<std::string> hosts;
  for (size_t node = 0; node < options.nodes.size(); ++node) {
    for (int i = 0; i < options.nodes[node]; ++i) {
      nodes[node].push_back(topology_.size++);
      hosts.push_back(options.host.empty() ? "node" + std::to_string(node)
                                           : options.host);
    }
  }
  topology_.nodes = std::move(nodes);
  topology_.hosts = std::move(hosts);
  for (size_t node = 0;
       DataBackends::NeedArenas(topology_) && node < options.nodes.size();
       ++node) {
    arenas_.push_back(std::make_unique<LoopbackArena>(options.nodes[node]));
  }
  mail_ = std::make_shared<MailRoom>(topology_.size);
  bells_ = std::make_unique<Doorbell[]>(static_cast<size_t>(topology_.size));
  for (int rank = 0; rank < topology_.size; ++rank) {
    const TreePlace place = PlaceOf(rank, topology_.nodes, topology_.fan_out);
    for (const int child : place.children) {
      rings_[{rank, child}] = std::make_unique<ByteRing>(options.edge_bytes);
      rings_[{child, rank}] = std::make_unique<ByteRing>(options.edge_bytes);
    }
  }
}

std::optional<ShmArena> Job::ArenaOf(int node) {
  if (arenas_.empty()) return std::nullopt;
  return arenas_[static_cast<size_t>(node)]->arena();
}

ByteRing* Job::RingFrom(int sender, int receiver) {
  const auto found = rings_.find({sender, receiver});
  return found == rings_.end() ? nullptr : found->second.get();
}

bool Job::Keep(const AbortRecord& record) {
  if (record_.has_value() && !record.Before(*record_)) return false;
  record_ = record;
  return true;
}

void Job::Raise(const AbortRecord& record) {
  {
    const MutexLock lock(&mutex_);
    if (!Keep(record)) return;
    troubled_ = true;
  }
  for (int rank = 0; rank < topology_.size; ++rank) BellOf(rank)->Ring();
}

void Job::Kill(int rank) {
  const MutexLock lock(&mutex_);
  dead_.push_back(rank);
  troubled_ = true;
}

std::optional<AbortRecord> Job::Poll(int rank) {
  if (!troubled_) return std::nullopt;
  std::vector<int> dead;
  {
    const MutexLock lock(&mutex_);
    dead = dead_;
  }
  for (const int other : dead) {
    if (other == rank) continue;
    Raise({AbortRecord::kDied, other, topology_.RankText(other) + " died"});
  }
  const MutexLock lock(&mutex_);
  return record_;
}

class LoopbackWorld final : public World {
 public:
  LoopbackWorld(std::shared_ptr<Job> job, int rank, const GpuAccess& gpu)
      : job_(std::move(job)),
        topology_(job_->topology()),
        p2p_(job_->mail(), rank) {
    topology_.rank = rank;
    const int node = topology_.NodeOf(rank);
    const int first = topology_.nodes[static_cast<size_t>(node)].front();
    data_.emplace(
        topology_, job_->ArenaOf(node),
        [this, first](size_t local_rank) {
          job_->BellOf(first + static_cast<int>(local_rank))->RingIfAsleep();
        },
        &p2p_, job_->BellOf(rank), gpu);
    for (int other = 0; other < topology_.size; ++other) {
      ByteRing* const in = job_->RingFrom(other, rank);
      if (in == nullptr) continue;
      edges_[other] = std::make_unique<LoopbackEdge>(
          in, job_->RingFrom(rank, other), job_->BellOf(other));
    }
  }

  const Topology& topology() const override { return topology_; }
  Edge* edge(int neighbour) override {
    const auto found = edges_.find(neighbour);
    return found == edges_.end() ? nullptr : found->second.get();
  }
  Doorbell* doorbell() override { return job_->BellOf(topology_.rank); }
  std::vector<Backend*> backends() override { return data_->all(); }
  std::string DescribeData() const override { return data_->Describe(); }
  void RaiseAbort(const AbortRecord& record) override { job_->Raise(record); }
  std::optional<AbortRecord> PollAbort() override {
    return job_->Poll(topology_.rank);
  }
  GpuDevices* gpus() override { return data_->gpus(); }
  // Ranks of one process need nothing else from each other when their threads
  // have ended.
  void Finalize(bool clean) override { data_->Close(clean); }

  void Kill() { job_->Kill(topology_.rank); }

 private:
  const std::shared_ptr<Job> job_;
  Topology topology_;
  LoopbackPointToPoint p2p_;
  std::optional<DataBackends> data_;
  std::map<int, std::unique_ptr<LoopbackEdge>> edges_;
};

}  // namespace

std::vector<std::unique_ptr<World>> MakeLoopback(
    const LoopbackOptions& options) {
  const auto job = std::make_shared<Job>(options);
  std::vector<std::unique_ptr<World>> worlds;
  for (int rank = 0; rank < job->topology().size; ++rank) {
    worlds.push_back(std::make_unique<LoopbackWorld>(
        job, rank, options.gpu == nullptr ? GpuAccess() : options.gpu(rank)));
  }
  return worlds;
}

void LoopbackKill(World* world) { static_cast<LoopbackWorld*>(world)->Kill(); }

}  // namespace tf_hvd
