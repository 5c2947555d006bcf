// ProgressEngine: selects the thread that runs the cycle, one at a time: the
// background thread, or a caller that has just submitted and finds nothing else
// pending (agreement.md, section 7). Only the holder touches edges, controller,
// executor and transports.
//
// Submit and Leave may be called on any thread. The thread that held the
// progress lock fires the completions. While data moves, the background thread
// hands its completions to a separate thread.
#ifndef TF_HVD_RUNTIME_EXECUTION_PROGRESS_ENGINE_H_
#define TF_HVD_RUNTIME_EXECUTION_PROGRESS_ENGINE_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "base/config.h"
#include "base/mutex.h"
#include "runtime/contract/world.h"
#include "runtime/execution/completion_thread.h"
#include "runtime/execution/cycle.h"
#include "runtime/execution/idling.h"
#include "runtime/request/tensor_queue.h"

namespace tf_hvd {

// Held by the thread that runs the cycle. No thread waits for it.
class CAPABILITY("progress lock") ProgressLock {
 public:
  bool TryTake() TRY_ACQUIRE(true) { return !taken_.exchange(true); }
  void Release() RELEASE() { taken_ = false; }

 private:
  std::atomic<bool> taken_{false};
};

class ProgressEngine {
 public:
  // The background thread's name, by which processes that a rank starts
  // recognise it.
  static constexpr char kThreadName[] = "tf_hvd";

  // All arguments outlive the engine. A job of one rank has no background
  // thread.
  ProgressEngine(const Config& config, World* world, Cycle* cycle,
                 TensorQueue* queue);
  ~ProgressEngine();

  // This thread may make the request's progress itself, for at most the spin
  // limit: a request of up to kInPlaceBytes, or of any size if the caller
  // waits. A waiting caller stays as long as data moves, and a hundred times
  // the limit while none does. Unfinished requests are left to the background
  // thread.
  void Submit(Entry entry);

  // Leaves the job for `reason` and returns when other ranks need nothing more
  // from this one; bounded by the cycle's limits. Only the first call has an
  // effect.
  void Leave(const std::string& reason, bool through);

 private:
  void Background();
  bool BackgroundTurn() REQUIRES(progress_);
  bool Doze();
  void WakeBackground();
  WaitState StateOfWait() const REQUIRES(progress_);
  void CallerTurn(bool waits);
  void DriveForCaller(bool waits) REQUIRES(progress_);
  void DriveAlone();
  void FireAll(std::vector<Outcome> outcomes) EXCLUDES(progress_);
  void FireMeanwhile(std::vector<Outcome> outcomes) EXCLUDES(progress_);
  std::vector<Outcome> TakeOutcomes() REQUIRES(progress_);

  const int64_t spin_ns_;
  World* const world_;
  Cycle* const cycle_;
  TensorQueue* const queue_;

  ProgressLock progress_;
  std::atomic<int64_t> open_{0};  // requests of this rank that have not ended
  std::atomic<bool> has_background_{false};
  std::atomic<uint64_t> caller_turns_{0};
  // The background thread sleeps, and arrivals ring no doorbell: callers poll.
  std::atomic<bool> dozing_{false};
  int64_t last_progress_ns_ = 0;  // background thread only
  uint64_t seen_turns_ = 0;       // background thread only
  CompletionThread completions_;  // background thread only
  std::thread thread_;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_EXECUTION_PROGRESS_ENGINE_H_
