// SimRank: one simulated rank: a real Controller, an inbox, and an executor
// that simulates each operation as a meeting of the set's members.
#ifndef TF_HVD_TESTS_RUNTIME_PROTOCOL_SIM_RANK_H_
#define TF_HVD_TESTS_RUNTIME_PROTOCOL_SIM_RANK_H_

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/agreement/controller.h"
#include "tests/runtime/protocol/history.h"

namespace tf_hvd::protocol_test {

class SimWorld;

class SimRank : private ResponseRunner, private ControllerHost {
 public:
  // `steps_inside`: the executor calls step() while it waits. Otherwise a batch
  // is executed when it arrives, and the rank does nothing else meanwhile.
  SimRank(SimWorld* world, const Topology& topology, bool steps_inside,
          int slowness);

  void Submit(Entry entry);
  void Deliver(int from, std::string message);
  void Tick();
  void Leave(const std::string& reason, bool through);
  void Die() {
    alive_ = false;
  }  // or stops permanently: makes no more progress
  void AbortWith(const std::string& text);
  // The meeting that this rank is in has ended.
  void MeetingEnded(const OrderKey& key);

  bool alive() const { return alive_; }
  bool ended() const { return !controller_.ended().ok(); }
  const Controller& controller() const { return controller_; }
  bool Idle() const { return batches_.empty() && held_.empty(); }

 private:
  // ResponseRunner
  void Add(std::vector<Response> batch) override;
  uint64_t moved() const override { return 0; }
  int awaited() const override { return -1; }
  size_t Backlog() const override {
    return batches_.size() - (running_ ? 1 : 0);
  }
  // ControllerHost
  void Send(int neighbour, std::string_view message) override;
  void Complete(Completion done, Status status, int32_t value) override;
  void SetAdded(int32_t set, const SetMembers& members) override;
  void SetRemoved(int32_t set) override;
  std::string Compiling() const override { return ""; }
  bool AskPlace() override { return rank_ % 2 == 1; }
  std::string Place() const override { return ""; }
  void Warn(const std::string& text) override;
  void Abort(AbortRecord::Class error_class, int32_t rank,
             const std::string& text) override;

  void Poke();
  void Step();
  void WatchDue();
  bool Inside() const { return !steps_inside_ && !batches_.empty(); }
  void RunExecutor();
  void RunFront();
  void PopFront();
  void End(Response* run, const Status& status);
  void SendHeld();

  SimWorld* const world_;
  const int rank_;
  const bool steps_inside_;
  const int slowness_;  // a factor on the time until it polls
  Controller controller_;
  bool alive_ = true;
  bool scheduled_ = false;
  int64_t watched_ns_ = 0;  // the due time for which a poll is scheduled
  bool running_ = false;    // in a meeting
  OrderKey meeting_;
  std::string leaving_;   // reason, until the controller has been notified
  bool through_ = false;  // when it leaves
  std::deque<Entry> submitted_;
  std::deque<std::pair<int, std::string>> inbox_;
  std::deque<std::deque<Response>> batches_;
  struct Held {
    int64_t batches = 0;  // to be finished first
    int neighbour = 0;
    std::string message;
  };
  std::deque<Held> held_;
  int64_t frames_given_ = 0;
  int64_t frames_finished_ = 0;
  std::map<int32_t, int> places_;  // next place in the order of each set
};

}  // namespace tf_hvd::protocol_test

#endif  // TF_HVD_TESTS_RUNTIME_PROTOCOL_SIM_RANK_H_
