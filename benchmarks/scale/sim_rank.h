// SimRank: one rank of a simulated job. It runs the runtime's own cycle, with
// its agreement, fusion and backends, in a world with simulated messages.
#ifndef TF_HVD_BENCHMARKS_SCALE_SIM_RANK_H_
#define TF_HVD_BENCHMARKS_SCALE_SIM_RANK_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/config.h"
#include "benchmarks/scale/gpu_sums.h"
#include "benchmarks/scale/messages.h"
#include "benchmarks/scale/virtual_time.h"
#include "runtime/contract/doorbell.h"
#include "runtime/contract/world.h"
#include "runtime/execution/cycle.h"
#include "runtime/request/entry.h"
#include "runtime/request/tensor_queue.h"
#include "runtime/transport/routing/data_backends.h"
#include "runtime/transport/segment/arena.h"

namespace tf_hvd::scale {

// Costs of a rank's loop in nanoseconds.
struct LoopCosts {
  double turn_ns = 300;     // each turn
  double line_ns = 100;     // until a core sees a line that another has written
  double wake_ns = 30'000;  // until a sleeping thread continues
  // Until a call is seen, by a woken thread or by the caller.
  double submit_ns = 30'000;
};

// State shared by all ranks of a job.
struct Surroundings {
  VirtualTime* time = nullptr;
  Network* network = nullptr;
  MailRoom* room = nullptr;
  GpuStream* stream = nullptr;  // null: tensors are in host memory
  LoopCosts loop;
  Config config;
  // Latency of whatever a rank waits for: a line of its node, or a message.
  std::function<void(int rank, bool rings)> wake;
};

class SimRank final : private World {
 public:
  SimRank(const Surroundings& common, const Topology& topology,
          const std::optional<ShmArena>& arena);
  ~SimRank() override = default;

  // Call it once, when the neighbours exist.
  void Start();
  // Connects the edges of two neighbours.
  static void Connect(SimRank* a, SimRank* b);
  const std::vector<int>& children() const { return children_; }

  void Submit(Entry entry);
  // Data has arrived. `rings`: wakes a sleeping rank; otherwise the rank finds
  // the data at its next poll.
  void Poke(bool rings);

 private:
  // World
  const Topology& topology() const override { return topology_; }
  Edge* edge(int neighbour) override;
  Doorbell* doorbell() override { return &doorbell_; }
  std::vector<Backend*> backends() override;
  std::string DescribeData() const override { return "in a simulation"; }
  void RaiseAbort(const AbortRecord& record) override;
  std::optional<AbortRecord> PollAbort() override { return std::nullopt; }
  void Finalize(bool) override {}

  void Loop();
  void GoOnAfter(double ns);
  double DelayNs(bool rings) const;

  const Surroundings& common_;
  const Topology topology_;
  std::vector<int> children_;
  Doorbell doorbell_;
  std::map<int, std::unique_ptr<SimEdge>> edges_;
  SimPointToPoint p2p_;
  std::optional<DataBackends> host_;
  std::optional<GpuSums> gpu_;
  TensorQueue queue_;
  std::optional<Cycle> cycle_;
  std::unique_ptr<Fiber> fiber_;
  uint64_t pokes_ = 0;
  bool asleep_ = false;
  int64_t asleep_since_ns_ = 0;
};

}  // namespace tf_hvd::scale

#endif  // TF_HVD_BENCHMARKS_SCALE_SIM_RANK_H_
