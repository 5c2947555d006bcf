// Cycle: the whole loop of stages 4 to 8. Step() moves what can be moved
// without waiting: submissions to the controller, messages in, batches out.
// Advance() also executes. Who calls it, and when, is the progress lock's
// matter.
//
// Holder of the progress lock only, where not said otherwise.
#ifndef TF_HVD_RUNTIME_EXECUTION_CYCLE_H_
#define TF_HVD_RUNTIME_EXECUTION_CYCLE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/config.h"
#include "base/log.h"
#include "base/mutex.h"
#include "runtime/agreement/controller.h"
#include "runtime/agreement/message.h"
#include "runtime/contract/world.h"
#include "runtime/events/recorder.h"
#include "runtime/execution/executor.h"
#include "runtime/execution/idling.h"
#include "runtime/execution/job_end.h"
#include "runtime/request/tensor_queue.h"

namespace tf_hvd {

// A completion and what it is to be fired with.
struct Outcome {
  Completion done;
  Status status;
  int32_t value = 0;

  void Fire() { done.Fire(status, value); }
};

class Cycle : private ControllerHost, private ExecutorHost {
 public:
  // Told of process sets that come, the first of them while the cycle is made:
  // all ranks; and of those that go, with null.
  using SetListener =
      std::function<void(int32_t set, const SetMembers& members)>;

  // `world` and `queue` outlive the cycle.
  // `recorder` as well; null: none.
  Cycle(const Config& config, World* world, TensorQueue* queue,
        SetListener on_set, Recorder* recorder);

  // Never blocks, never executes; true if it did something.
  bool Step();

  // Step, then moves operations on, for a moment. True if either did something.
  bool Advance();

  // Requests that ended since the last call; to be fired without the progress
  // lock.
  std::vector<Outcome> TakeOutcomes() { return std::exchange(outcomes_, {}); }
  bool HasOutcomes() const { return !outcomes_.empty(); }

  // Any thread: this rank leaves, also if an operation is being executed. The
  // next Step tells the others. The first reason counts.
  void AskToLeave(const std::string& reason, bool through);

  // True when this rank owes nothing to anybody any more.
  bool AtEnd() const;
  bool aborted() const { return !abort_status_.ok(); }

  // What says how long nobody needs to call this, at `now_ns`; all but
  // `idle_ns` and `spin_ns`.
  WaitState StateOfWait(int64_t now_ns) const;
  // True if an edge had no room for all that is to be sent.
  bool HasOutput() const;

  // Any thread; of it, what any thread may call.
  ClockOffset* clock() { return controller_.clock(); }

  // Any thread: true if something has come that a Step would take.
  bool LooksBusy() const;
  // Any thread: true if anything in order has not ended.
  bool HasWork() const { return executor_.HasWork(); }

 private:
  // ControllerHost
  void Send(int neighbour, std::string_view message) override;
  void Complete(Completion done, Status status, int32_t value) override;
  void SetAdded(int32_t set, const SetMembers& members) override;
  void SetRemoved(int32_t set) override;
  std::string Compiling() const override { return queue_->compiling(); }
  void Warn(const std::string& text) override;
  void Abort(AbortRecord::Class error_class, int32_t rank,
             const std::string& text) override;
  // ExecutorHost
  void Ended(const Key& key, Completion done, const Status& status,
             int32_t value) override;

  bool Aborting() const { return end_.aborting() && !aborted(); }
  void LeaveIfAsked(int64_t now_ns);
  void CloseAtEnd(int64_t now_ns);
  void CheckAbort(int64_t now_ns);
  void Record(const std::string& end);
  // Why this rank leaves in vain, and who is silent.
  std::string InVainText() const;

  World* const world_;
  TensorQueue* const queue_;
  Recorder* const recorder_;
  const SetListener on_set_;
  const LogLevel log_level_;
  Executor executor_;
  Controller controller_;
  std::vector<MessageStream> streams_;
  bool polled_ = false;  // arrivals on some stream wake nobody
  std::vector<Outcome> outcomes_;
  int64_t next_tick_ns_ = 0;
  std::atomic<bool> leave_asked_{false};
  Mutex leave_mutex_;
  std::string leave_reason_ GUARDED_BY(leave_mutex_);
  bool leave_through_ GUARDED_BY(leave_mutex_) = false;
  JobEnd end_;
  Status abort_status_;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_EXECUTION_CYCLE_H_
