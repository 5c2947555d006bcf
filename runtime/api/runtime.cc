#include "runtime/api/runtime.h"

#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <utility>

#include "base/forks.h"
#include "base/mutex.h"
#include "runtime/execution/cycle.h"
#include "runtime/execution/progress_engine.h"
#include "runtime/request/tensor_queue.h"

namespace tf_hvd {
namespace {

class RankRuntime final : public Runtime {
 public:
  RankRuntime(const Config& config, std::unique_ptr<World> world,
              std::unique_ptr<Recorder> recorder, MainThread* main_thread)
      : timeline_limit_(config.timeline_limit),
        recorder_(std::move(recorder)),
        world_(std::move(world)),
        cycle_(
            config, world_.get(), &queue_,
            [this](int32_t set, const SetMembers& members) {
              OnSet(set, members);
            },
            recorder_.get(), main_thread),
        engine_(config, world_.get(), &cycle_, &queue_) {}

  ~RankRuntime() override { Shutdown("runtime destroyed", false); }

  void Submit(Entry entry) override {
    if (InForkedChild()) {
      return entry.done.Fire(FailedPrecondition(
          "'" + entry.name + "': " + ForkedText(topology().rank)));
    }
    ++submitting_;
    if (finished_) {
      entry.done.Fire(Aborted("tf_hvd has been shut down on this rank"));
    } else {
      ++submitted_;
      if (recorder_ != nullptr) {
        entry.done.set_record(recorder_->Add(entry));
      }
      engine_.Submit(std::move(entry));
    }
    --submitting_;
  }

  void NoteCompilation(const std::string& step) override {
    queue_.NoteCompilation(step);
  }

  void Shutdown(const std::string& reason, bool through) override {
    if (InForkedChild()) return;
    const MutexLock lock(&shutdown_mutex_);
    if (finished_) return;
    if (recorder_ != nullptr) recorder_->Leaves(reason, through);
    engine_.Leave(reason, through);
    StopTimeline();
    StopMetrics();
    if (recorder_ != nullptr) recorder_->Left(cycle_.aborted());
    finished_ = true;
    while (submitting_ > 0) sched_yield();
    world_->Finalize(!cycle_.aborted());
  }

  const Topology& topology() const override { return world_->topology(); }
  GpuDevices* gpus() const override { return world_->gpus(); }

  SetMembers SetRanks(int32_t set) const override {
    const MutexLock lock(ForkSafeMutex());
    const auto it = sets_.find(set);
    return it == sets_.end() ? nullptr : it->second;
  }

  int32_t FindSet(const std::vector<int>& ranks) const override {
    const MutexLock lock(ForkSafeMutex());
    for (auto it = sets_.rbegin(); it != sets_.rend(); ++it) {
      if (*it->second == ranks) return it->first;
    }
    return -1;
  }

  Status StartTimeline(const std::string& path, bool mark_cycles) override {
    const MutexLock lock(&observers_mutex_);
    if (timeline_ != nullptr) {
      return FailedPrecondition(
          "a timeline is being written: call stop_timeline() first");
    }
    TF_HVD_RETURN_IF_ERROR(CheckRecorder("a timeline needs"));
    cycle_.clock()->Want(true);
    if (topology().size > 1) world_->doorbell()->Ring();
    const auto clock = [this] {
      const ClockOffset::Known known = cycle_.clock()->known();
      return Timeline::Clock{known.offset_ns, known.error_ns};
    };
    return Timeline::Start({path, mark_cycles, timeline_limit_}, Head(),
                           recorder_.get(), recorder_->phases(), clock,
                           &timeline_);
  }

  Status ReadMetrics(MetricsTotals* totals) override {
    const MutexLock lock(&observers_mutex_);
    TF_HVD_RETURN_IF_ERROR(NeedMetrics());
    *totals = metrics_->Read();
    return Status::Ok();
  }

  Status StartMetricsFile(const std::string& path) override {
    const MutexLock lock(&observers_mutex_);
    TF_HVD_RETURN_IF_ERROR(NeedMetrics());
    return MetricsFile::Start(path, metrics_.get(), &metrics_file_);
  }

  std::unique_ptr<Timeline> Trace(std::shared_ptr<TraceForm> form) override {
    if (recorder_ == nullptr) return nullptr;
    return Timeline::StartInMemory(std::move(form), Head(), recorder_.get(),
                                   recorder_->phases());
  }

  void StopTimeline() override {
    const MutexLock lock(&observers_mutex_);
    cycle_.clock()->Want(false);
    timeline_.reset();
  }

  int64_t SubmittedCount() const override { return submitted_; }
  std::string EndText() const override {
    return recorder_ == nullptr ? "" : recorder_->ended();
  }

 private:
  TraceHead Head() const {
    const Topology& job = topology();
    TraceHead head;
    head.rank = job.rank;
    head.size = job.size;
    head.host = job.hosts[static_cast<size_t>(job.rank)];
    head.process = getpid();
    return head;
  }

  Status CheckRecorder(const char* what) const {
    if (recorder_ != nullptr) return Status::Ok();
    return FailedPrecondition(
        what +
        std::string(
            " the flight recorder, but its memory could not be allocated"));
  }

  Status NeedMetrics() REQUIRES(observers_mutex_) {
    TF_HVD_RETURN_IF_ERROR(CheckRecorder("metrics need"));
    if (metrics_ == nullptr) {
      metrics_ = std::make_unique<Metrics>(recorder_.get(), topology().rank,
                                           topology().size);
    }
    return Status::Ok();
  }

  void StopMetrics() {
    const MutexLock lock(&observers_mutex_);
    metrics_file_.reset();
  }

  // Called by the holder of the progress lock, and before the lock exists.
  void OnSet(int32_t set, const SetMembers& members) {
    const MutexLock lock(ForkSafeMutex());
    if (members == nullptr) {
      sets_.erase(set);
    } else {
      sets_[set] = members;
    }
  }

  std::map<int32_t, SetMembers> sets_ GUARDED_BY(ForkSafeMutex());
  Mutex shutdown_mutex_;  // one Shutdown at a time
  std::atomic<bool> finished_{false};
  std::atomic<int> submitting_{0};  // threads inside Submit
  std::atomic<int64_t> submitted_{0};

  const int64_t timeline_limit_;

  // Destroyed in the reverse order: the engine's background thread ends first.
  const std::unique_ptr<Recorder> recorder_;
  Mutex observers_mutex_;
  std::unique_ptr<Timeline> timeline_ GUARDED_BY(observers_mutex_);
  std::unique_ptr<Metrics> metrics_ GUARDED_BY(observers_mutex_);
  std::unique_ptr<MetricsFile> metrics_file_ GUARDED_BY(observers_mutex_);
  const std::unique_ptr<World> world_;
  TensorQueue queue_;
  Cycle cycle_;
  ProgressEngine engine_;
};

}  // namespace

std::unique_ptr<Runtime> MakeRuntime(const Config& config,
                                     std::unique_ptr<World> world,
                                     std::unique_ptr<Recorder> recorder,
                                     MainThread* main_thread) {
  return std::make_unique<RankRuntime>(config, std::move(world),
                                       std::move(recorder), main_thread);
}

}  // namespace tf_hvd
