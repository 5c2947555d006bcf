// Executor: runs requests that are in order, strictly in that order (stage 7),
// and fires nothing itself: outcomes go to its host.
//
// Holder of the helm only, where not said otherwise.
#ifndef TF_HVD_RUNTIME_EXECUTOR_H_
#define TF_HVD_RUNTIME_EXECUTOR_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "runtime/ledger.h"
#include "runtime/transport/data_transport.h"

namespace tf_hvd {

class ExecutorHost {
 public:
  virtual ~ExecutorHost() = default;
  // An own request has ended.
  virtual void Ended(const Key& key, Completion done, const Status& status,
                     int32_t value) = 0;
};

class Executor {
 public:
  Executor(DataTransport* data, int64_t fusion_threshold, ExecutorHost* host)
      : data_(data), fusion_threshold_(fusion_threshold), host_(host) {}
  ~Executor();

  // What a frame gives this rank to do. May be called inside RunNext, by the
  // pump.
  void Add(std::vector<Run> frame);

  // Runs the next group of fused requests; false if there is none, or if the
  // next one has more than `max_bytes`. A Status that is not ok means that
  // the data streams are out of step: nothing runs any more, Fail must follow.
  bool RunNext(int64_t max_bytes, const Pump& pump, Status* status);

  // Completes everything that is left with `status`.
  void Fail(const Status& status);

  // Frames that have not begun.
  size_t Backlog() const { return frames_.size() - (running_ ? 1 : 0); }

  // How the operation in progress is getting on.
  Progress progress() const { return data_->progress(); }

  // Any thread.
  bool HasWork() const { return has_work_; }
  // Any thread: false also when the rest waits for Fail.
  bool CanRun() const { return has_work_ && !broken_; }

 private:
  struct Frame {
    std::vector<Run> runs;
    std::vector<std::vector<size_t>> plan;
    size_t next = 0;  // of plan
  };

  Status RunGroup(Frame* frame, const std::vector<size_t>& group,
                  const Pump& pump);
  Status RunOne(Run* run, const Pump& pump);
  Status Allreduce(const std::vector<Run*>& runs, const Pump& pump);
  Status Allgather(Run* run, const Pump& pump);
  Status PassOnRows(const std::vector<int>& ranks,
                    const std::vector<int64_t>& bytes, const Pump& pump);
  Status Broadcast(Run* run, const Pump& pump);
  Status Alltoall(Run* run, const Pump& pump);
  Status Reducescatter(Run* run, const Pump& pump);
  void End(Run* run, const Status& status);

  DataTransport* const data_;
  const int64_t fusion_threshold_;
  ExecutorHost* const host_;
  std::deque<Frame> frames_;
  bool running_ = false;
  std::atomic<bool> broken_{false};
  std::atomic<bool> has_work_{false};
  // Memory that a transport may still touch after an abort.
  std::vector<std::shared_ptr<void>> graveyard_;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_EXECUTOR_H_
