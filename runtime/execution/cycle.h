// Cycle: the whole loop of stages 4 to 8. Step() makes all progress that is
// possible without waiting: submissions to the controller, messages in, batches
// out. Advance() also executes operations. The holder of the progress lock
// decides when to call them.
//
// Called only by the holder of the progress lock, unless stated otherwise.
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
#include "base/main_thread.h"
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

// A completion and its result.
struct Outcome {
  Completion done;
  Status status;
  int32_t value = 0;

  void Fire() { done.Fire(status, value); }
};

class Cycle : private ControllerHost, private ExecutorHost {
 public:
  // Notified of process sets that are added, starting with the set of all ranks
  // while the cycle is being constructed, and of removed ones, with null.
  using SetListener =
      std::function<void(int32_t set, const SetMembers& members)>;

  // `world` and `queue` outlive the cycle, as do `recorder` and `main_thread`,
  // which may be null.
  Cycle(const Config& config, World* world, TensorQueue* queue,
        SetListener on_set, Recorder* recorder, MainThread* main_thread);

  // Never blocks, never executes; true if it did something.
  bool Step();

  // Step, then makes progress on operations for a moment. True if either did
  // something.
  bool Advance();

  // Requests that ended since the last call; to be fired without the progress
  // lock held.
  std::vector<Outcome> TakeOutcomes() { return std::exchange(outcomes_, {}); }
  bool HasOutcomes() const { return !outcomes_.empty(); }

  // Any thread: this rank leaves, even if an operation is being executed. The
  // next Step announces it to the other ranks. Only the first reason is used.
  void AskToLeave(const std::string& reason, bool through);

  // True when other ranks need nothing more from this rank.
  bool AtEnd() const;
  bool aborted() const { return !abort_status_.ok(); }

  // The state that determines how long this need not be called, at `now_ns`;
  // all of it except `idle_ns` and `spin_ns`.
  WaitState StateOfWait(int64_t now_ns) const;
  // True if some edge had no room for all output.
  bool HasOutput() const;

  // Any thread, for those of its members that any thread may call.
  ClockOffset* clock() { return controller_.clock(); }

  // Any thread: true if there is input for a Step.
  bool LooksBusy() const;
  // Any thread: true if any ordered request has not ended.
  bool HasWork() const { return executor_.HasWork(); }

 private:
  // ControllerHost
  void Send(int neighbour, std::string_view message) override;
  void Complete(Completion done, Status status, int32_t value) override;
  void SetAdded(int32_t set, const SetMembers& members) override;
  void SetRemoved(int32_t set) override;
  std::string Compiling() const override { return queue_->compiling(); }
  bool AskPlace() override;
  std::string Place() const override;
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
  // The text for a rank that left without an answer, with the silent rank.
  std::string LeaveTimeoutText() const;

  World* const world_;
  TensorQueue* const queue_;
  Recorder* const recorder_;
  MainThread* const main_thread_;
  const SetListener on_set_;
  const LogLevel log_level_;
  Executor executor_;
  Controller controller_;
  std::vector<MessageStream> streams_;
  bool polled_ = false;  // arrivals on some edge wake no thread
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
