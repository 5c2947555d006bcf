#include "benchmarks/scale/job.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "runtime/transport/segment/arena.h"

namespace tf_hvd::scale {
namespace {

Topology TopologyOf(const JobSettings& settings) {
  std::vector<std::vector<int>> nodes;
  std::vector<std::string> hosts;
  int rank = 0;
  for (int node = 0; node < settings.nodes; ++node) {
    nodes.emplace_back();
    for (int local = 0; local < settings.ranks_per_node; ++local) {
      nodes.back().push_back(rank++);
      hosts.push_back("host" + std::to_string(node));
    }
  }
  Topology topology;
  topology.size = rank;
  topology.nodes = std::move(nodes);
  topology.hosts = std::move(hosts);
  topology.everyone = topology.Everyone();
  return topology;
}

std::vector<size_t> NodeOfEach(const Topology& topology) {
  std::vector<size_t> nodes;
  for (size_t node = 0; node < topology.nodes.size(); ++node) {
    nodes.insert(nodes.end(), topology.nodes[node].size(), node);
  }
  return nodes;
}

// A rank's requests to the runtime. The tensors of all ranks are at the same
// addresses, which have no memory.
Entry EntryOf(const Gradients& gradients, bool gpu, char* tensors) {
  Entry entry;
  entry.name = gradients.name;
  entry.request.kind =
      gradients.tensors.empty() ? OpKind::kBarrier : OpKind::kAllreduce;
  if (gpu && !gradients.tensors.empty()) {
    entry.request.device = DeviceKind::kGpu;
    entry.memory.kind = MemoryKind::kDevice;
    entry.memory.device = 0;
  }
  for (const int64_t count : gradients.tensors) {
    entry.request.tensors.push_back({DType::kFloat32, {count}});
    entry.tensors.push_back({tensors, tensors, count});
    tensors += 4 * count;
  }
  return entry;
}

// The ranks of a job that this project's runtime serves.
class OwnRanks {
 public:
  OwnRanks(const JobSettings& settings, const Topology& topology,
           VirtualTime* time, Network* network, GpuStream* stream)
      : settings_(settings), room_(time, network, [this](int rank) {
          Poke(rank, /*rings=*/false);
        }) {
    common_.time = time;
    common_.network = network;
    common_.room = &room_;
    common_.stream = stream;
    common_.loop = settings.loop;
    common_.config = settings.config;
    common_.wake = [this](int rank, bool rings) { Poke(rank, rings); };
    LayOut();
    AddRanks(topology);
  }

  void Start() {
    for (const auto& rank : ranks_) rank->Start();
  }
  const MailRoom& room() const { return room_; }

  void Sum(int rank, size_t gradients, std::function<void()> done) {
    Entry entry = EntryOf(settings_.training.gradients[gradients],
                          common_.stream != nullptr, tensors_[gradients]);
    entry.done = Completion(
        [done = std::move(done)](const Status&, int32_t) { done(); });
    ranks_[static_cast<size_t>(rank)]->Submit(std::move(entry));
  }

 private:
  void Poke(int rank, bool rings) {
    ranks_[static_cast<size_t>(rank)]->Poke(rings);
  }

  void LayOut() {
    for (const Gradients& gradients : settings_.training.gradients) {
      tensors_.push_back(
          ReserveAddresses(static_cast<size_t>(BytesOf(gradients)) + 1));
    }
  }

  std::optional<ShmArena> NewArena() const {
    if (settings_.ranks_per_node == 1) return std::nullopt;
    const auto ranks = static_cast<size_t>(settings_.ranks_per_node);
    const size_t bytes = ShmArena::BytesFor(settings_.ranks_per_node);
    char* const memory = ReserveAddresses(bytes);
    BackWithMemory(memory, ShmArena::kSets * ranks * sizeof(ProgressLine));
    return ShmArena(memory, settings_.ranks_per_node);
  }

  void AddRanks(Topology topology) {
    for (const auto& node : topology.nodes) {
      const std::optional<ShmArena> arena = NewArena();
      for (const int rank : node) {
        topology.rank = rank;
        ranks_.push_back(std::make_unique<SimRank>(common_, topology, arena));
      }
    }
    for (const auto& rank : ranks_) {
      for (const int child : rank->children()) {
        SimRank::Connect(rank.get(), ranks_[static_cast<size_t>(child)].get());
      }
    }
  }

  const JobSettings& settings_;
  Surroundings common_;
  MailRoom room_;
  std::vector<char*> tensors_;  // by index of gradients
  std::vector<std::unique_ptr<SimRank>> ranks_;
};

JobResult Measure(const JobSettings& settings, VirtualTime* time,
                  Training::Sum sum) {
  Training training(time, settings.training,
                    settings.nodes * settings.ranks_per_node, std::move(sum));
  training.Start();
  while (!training.ended()) {
    if (time->RunNext()) continue;
    std::fprintf(stderr, "the simulated job makes no progress\n");
    std::exit(1);
  }
  JobResult result;
  result.steps_ns = training.steps_ns();
  result.events = time->events();
  return result;
}

}  // namespace

JobResult RunJob(const JobSettings& settings) {
  SetCoreCosts(settings.core);
  VirtualTime time;
  const Topology topology = TopologyOf(settings);
  Network network(&time, settings.network, NodeOfEach(topology));
  GpuStream stream(&time, &network, settings.algorithm, settings.pack);
  if (settings.schedule == Schedule::kHorovod) {
    std::vector<double> bytes;
    for (const Gradients& each : settings.training.gradients) {
      bytes.push_back(BytesOf(each));
    }
    Horovod horovod(&time, &network, &stream, settings.horovod,
                    std::move(bytes));
    horovod.Start();
    return Measure(settings, &time,
                   [&](int rank, size_t tensor, std::function<void()> done) {
                     horovod.Submit(rank, tensor, std::move(done));
                   });
  }
  OwnRanks ranks(settings, topology, &time, &network,
                 settings.schedule == Schedule::kGpu ? &stream : nullptr);
  ranks.Start();
  JobResult result =
      Measure(settings, &time,
              [&](int rank, size_t gradients, std::function<void()> done) {
                ranks.Sum(rank, gradients, std::move(done));
              });
  result.data_messages = ranks.room().messages_across();
  result.data_bytes = ranks.room().bytes_across();
  result.agreement_messages = network.messages_across() - result.data_messages;
  result.agreement_bytes = network.bytes_across() - result.data_bytes;
  return result;
}

}  // namespace tf_hvd::scale
