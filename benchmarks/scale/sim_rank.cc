#include "benchmarks/scale/sim_rank.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "runtime/agreement/tree.h"
#include "runtime/execution/idling.h"

namespace tf_hvd::scale {

SimRank::SimRank(const Surroundings& common, const Topology& topology,
                 const std::optional<ShmArena>& arena)
    : common_(common),
      topology_(topology),
      p2p_(common.time, common.network, common.room, topology.rank) {
  const int rank = topology.rank;
  const TreePlace place = PlaceOf(rank, topology.nodes, topology.fan_out);
  children_ = place.children;
  std::vector<int> neighbours = place.children;
  if (place.parent >= 0) neighbours.push_back(place.parent);
  const auto wake = [&common, rank](int other) {
    common.wake(other,
                common.network->NodeOf(rank) == common.network->NodeOf(other));
  };
  for (const int neighbour : neighbours) {
    edges_[neighbour] = std::make_unique<SimEdge>(common.time, common.network,
                                                  wake, rank, neighbour);
  }
  if (common.stream != nullptr) {
    gpu_.emplace(
        common.stream, [&common](int other) { common.wake(other, true); },
        rank);
    return;
  }
  const auto& node = topology_.nodes[common.network->NodeOf(rank)];
  host_.emplace(
      topology, arena,
      [&common, &node](size_t local) {
        common.time->Settle();
        common.time->At(
            common.time->now() + WholeNs(common.loop.line_ns),
            [&common, other = node[local]] { common.wake(other, true); });
      },
      &p2p_, /*doorbell=*/nullptr, GpuAccess(),
      SlotOptions{SlotStores::kOrdinary, nullptr});
}

void SimRank::Connect(SimRank* a, SimRank* b) {
  SimEdge* const there = a->edges_.at(b->topology_.rank).get();
  SimEdge* const back = b->edges_.at(a->topology_.rank).get();
  there->Join(back);
  back->Join(there);
}

void SimRank::Start() {
  cycle_.emplace(
      common_.config, static_cast<World*>(this), &queue_,
      [](int32_t, const SetMembers&) {}, /*recorder=*/nullptr,
      /*main_thread=*/nullptr);
  fiber_ = std::make_unique<Fiber>(common_.time, [this] { Loop(); });
  common_.time->At(common_.time->now(),
                   [this] { common_.time->Resume(fiber_.get()); });
}

void SimRank::Submit(Entry entry) {
  queue_.Push(std::move(entry));
  ++pokes_;
  GoOnAfter(std::min(DelayNs(/*rings=*/true), common_.loop.submit_ns));
}

// The background thread's loop, as in progress_engine.cc: it continues while
// anything progresses, and sleeps as described in idling.h.
void SimRank::Loop() {
  VirtualTime* const time = common_.time;
  while (true) {
    const uint64_t seen = pokes_;
    const bool busy = cycle_->Advance();
    for (Outcome& outcome : cycle_->TakeOutcomes()) outcome.Fire();
    time->Charge(common_.loop.turn_ns);
    time->Settle();
    if (busy || pokes_ != seen) continue;
    asleep_ = true;
    asleep_since_ns_ = time->now();
    time->Suspend();
  }
}

void SimRank::Poke(bool rings) {
  ++pokes_;
  if (asleep_) GoOnAfter(DelayNs(rings));
}

void SimRank::GoOnAfter(double ns) {
  if (!asleep_) return;
  asleep_ = false;
  common_.time->At(common_.time->now() + WholeNs(ns),
                   [this] { common_.time->Resume(fiber_.get()); });
}

// The delay until an arrival is seen.
double SimRank::DelayNs(bool rings) const {
  const int64_t now_ns = common_.time->now();
  WaitState state = cycle_->StateOfWait(now_ns);
  state.idle_ns = now_ns - asleep_since_ns_;
  state.spin_ns = common_.config.spin_ns;
  const int64_t sleeps_ns = WaitForArrivalsNs(state);
  if (sleeps_ns == 0) return common_.loop.turn_ns / 2;
  if (rings) return common_.loop.wake_ns;
  return static_cast<double>(sleeps_ns) / 2;
}

Edge* SimRank::edge(int neighbour) { return edges_.at(neighbour).get(); }

std::vector<Backend*> SimRank::backends() {
  if (gpu_.has_value()) return {&*gpu_};
  return host_->all();
}

void SimRank::RaiseAbort(const AbortRecord& record) {
  std::fprintf(stderr, "the simulated job has ended: %s\n",
               record.text.c_str());
  std::exit(1);
}

}  // namespace tf_hvd::scale
