// Executor: keeps operations in progress (stage 7). Collectives start strictly
// in the agreed order and may end in any; a window limits how many are in
// progress at once. Fires no completions itself: outcomes go to its host.
//
// PlanFusion: selects the requests of one batch that are executed as one
// operation (stage 6). Pure, and the same on all ranks because the batch is.
//
// Called only by the holder of the progress lock, unless stated otherwise.
#ifndef TF_HVD_RUNTIME_EXECUTION_EXECUTOR_H_
#define TF_HVD_RUNTIME_EXECUTION_EXECUTOR_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/agreement/controller_host.h"
#include "runtime/agreement/response.h"
#include "runtime/contract/operation.h"
#include "runtime/execution/collective.h"
#include "runtime/execution/loose_requests.h"
#include "runtime/request/entry.h"

namespace tf_hvd {

class ExecutorHost {
 public:
  virtual ~ExecutorHost() = default;
  // A request of this rank has ended.
  virtual void Ended(const Key& key, Completion done, const Status& status,
                     int32_t value) = 0;
};

class Executor final : public ResponseRunner {
 public:
  // The first of `backends` that serves an operation gets it. The backends and
  // `host` outlive the executor. So does `phases`, which receives the phases of
  // operations and may be null. `warn` receives warnings about slow programs;
  // may be null.
  Executor(std::vector<Backend*> backends, int64_t fusion_threshold,
           ExecutorHost* host, PhaseLog* phases = nullptr,
           std::function<void(const std::string& text)> warn = nullptr)
      : backends_(std::move(backends)),
        fusion_threshold_(fusion_threshold),
        host_(host),
        phases_(phases),
        warn_(std::move(warn)) {}

  // ResponseRunner
  void Add(std::vector<Response> batch) override;
  uint64_t moved() const override { return moved_; }
  // For the oldest operation.
  int awaited() const override { return has_work_ ? awaited_ : -1; }
  size_t Backlog() const override { return batches_.size() - (begun_ ? 1 : 0); }

  // Starts operations that may start, and makes progress on the others, without
  // waiting. True if it did something. If the Status is not ok, the ranks' data
  // is out of step: nothing may be moved any more, and Fail must follow.
  bool Progress(Status* status);

  // Completes all remaining requests with `status`.
  void Fail(const Status& status);

  // True if operations are in progress.
  bool Moving() const { return !under_way_.empty(); }
  // True if the doorbell rings when any operation in progress ends.
  bool Rings() const {
    return std::all_of(
        under_way_.begin(), under_way_.end(), [](const UnderWay& one) {
          return one.rings || one.waits;  // for an operation that rings
        });
  }

  // Any thread.
  bool HasWork() const { return has_work_; }
  // Any thread: also false if the remaining work only waits for Fail.
  bool CanRun() const { return has_work_ && !broken_; }

 private:
  struct Batch {
    std::vector<Response> responses;
    std::vector<std::vector<size_t>> plan;
    size_t next = 0;  // index into plan
  };
  struct UnderWay {
    UnderWay(std::vector<Response> responses, PhaseTimer its_timer)
        : collective(std::move(responses)), timer(its_timer) {}

    Collective collective;
    PhaseTimer timer;
    OperationSpec next;  // to be made when the backend has room
    bool waits = false;  // `next` is valid
    Backend* backend = nullptr;
    std::unique_ptr<Operation> operation;
    int awaited = -1;
    bool rings = false;  // as of the last poll
    bool busy = false;   // it could make more progress without waiting
  };

  Status Begin(bool* moved);
  void NoteLoose(const Response& response);
  Status Move(UnderWay* one, bool* moved, bool* ended);
  Status MakeNext(UnderWay* one, bool* moved, bool* ended);
  Status TellOfSets(const Response& response);
  Backend* BackendFor(const OperationSpec& spec) const;
  size_t UnderWayOn(const Backend* backend) const;
  void End(Response* response, const Status& status);
  // Records its progress.
  static void Record(UnderWay* one, const Poll& poll);
  static void KeepIndefinitely(std::list<UnderWay>* list,
                               std::list<UnderWay>::iterator one);
  void NoteWork();

  const std::vector<Backend*> backends_;
  const int64_t fusion_threshold_;
  ExecutorHost* const host_;
  PhaseLog* const phases_;
  const std::function<void(const std::string& text)> warn_;
  LooseRequests loose_;
  std::deque<Batch> batches_;
  bool begun_ = false;  // the first batch has begun
  std::list<UnderWay> under_way_;
  std::map<int32_t, uint64_t> numbers_;  // operations made, by set
  std::map<int32_t, int64_t> ordered_;   // requests, by set
  uint64_t collectives_ = 0;             // started so far
  uint64_t moved_ = 0;
  int awaited_ = -1;
  std::atomic<bool> broken_{false};
  std::atomic<bool> has_work_{false};
};

// Indices into `batch`, each once; the requests of an inner list are executed
// together, the lists in this order. Only allreduces of equal set, type, reduce
// operation and scales are combined, up to `threshold` bytes (0: never),
// skipping others that do not match. Requests of all other kinds run
// individually; a group of them is one request already.
std::vector<std::vector<size_t>> PlanFusion(const std::vector<Response>& batch,
                                            int64_t threshold);

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_EXECUTION_EXECUTOR_H_
