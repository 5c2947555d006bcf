#include "runtime/api/runtime.h"

#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <mutex>
#include <utility>

#include "runtime/base/forks.h"
#include "runtime/execution/cycle.h"
#include "runtime/execution/progress_engine.h"
#include "runtime/request/tensor_queue.h"

namespace tf_hvd {
namespace {

CallFacts FactsOf(const Entry& entry) {
  const Request& request = entry.request;
  CallFacts facts;
  facts.name = entry.name;
  facts.source = entry.source;
  facts.set = entry.set;
  facts.kind = request.kind;
  facts.reduce_op = request.reduce_op;
  facts.device = request.device;
  if (request.compiled) facts.caller = CallerKind::kCompiled;
  if (entry.caller_waits) facts.caller = CallerKind::kWaits;
  facts.tensors = static_cast<int32_t>(request.tensors.size());
  facts.bytes = ExpectedBytes(entry, 1);
  facts.step = entry.step;
  if (request.tensors.empty()) return facts;
  facts.dtype = request.tensors[0].dtype;
  facts.shape = &request.tensors[0].shape;
  return facts;
}

}  // namespace

class Runtime::Impl {
 public:
  Impl(const Config& config, std::unique_ptr<World> world,
       std::unique_ptr<Recorder> recorder)
      : timeline_limit_(config.timeline_limit),
        recorder_(std::move(recorder)),
        world_(std::move(world)),
        cycle_(
            config, world_.get(), &queue_,
            [this](int32_t set, const SetMembers& members) {
              OnSet(set, members);
            },
            recorder_.get()),
        engine_(config, world_.get(), &cycle_, &queue_) {}

  ~Impl() { Shutdown("runtime destroyed", false); }

  void Submit(Entry entry) {
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
        entry.done.set_record(recorder_->Add(FactsOf(entry)));
      }
      engine_.Submit(std::move(entry));
    }
    --submitting_;
  }

  void NoteCompilation(const std::string& step) {
    queue_.NoteCompilation(step);
  }

  void Shutdown(const std::string& reason, bool through) {
    if (InForkedChild()) return;
    const std::lock_guard<std::mutex> lock(shutdown_mutex_);
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

  const Topology& topology() const { return world_->topology(); }
  GpuDevices* gpus() const { return world_->gpus(); }

  SetMembers SetRanks(int32_t set) const {
    const std::lock_guard<std::mutex> lock(ForkSafeMutex());
    const auto it = sets_.find(set);
    return it == sets_.end() ? nullptr : it->second;
  }

  int32_t FindSet(const std::vector<int>& ranks) const {
    const std::lock_guard<std::mutex> lock(ForkSafeMutex());
    for (auto it = sets_.rbegin(); it != sets_.rend(); ++it) {
      if (*it->second == ranks) return it->first;
    }
    return -1;
  }

  Status StartTimeline(const std::string& path, bool mark_cycles) {
    const std::lock_guard<std::mutex> lock(observers_mutex_);
    if (timeline_ != nullptr) {
      return FailedPrecondition(
          "a timeline is being written: call stop_timeline() first");
    }
    TF_HVD_RETURN_IF_ERROR(CheckRecorder("timeline"));
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

  Status ReadMetrics(MetricsTotals* totals) {
    const std::lock_guard<std::mutex> lock(observers_mutex_);
    TF_HVD_RETURN_IF_ERROR(NeedMetrics());
    *totals = metrics_->Read();
    return Status::Ok();
  }

  Status StartMetricsFile(const std::string& path) {
    const std::lock_guard<std::mutex> lock(observers_mutex_);
    TF_HVD_RETURN_IF_ERROR(NeedMetrics());
    return MetricsFile::Start(path, metrics_.get(), &metrics_file_);
  }

  std::unique_ptr<Timeline> Trace(std::shared_ptr<TraceForm> form) {
    if (recorder_ == nullptr) return nullptr;
    return Timeline::StartInMemory(std::move(form), Head(), recorder_.get(),
                                   recorder_->phases());
  }

  void StopTimeline() {
    const std::lock_guard<std::mutex> lock(observers_mutex_);
    cycle_.clock()->Want(false);
    timeline_.reset();
  }

  int64_t submitted() const { return submitted_; }
  std::string EndText() const {
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
        std::string("there is no ") + what +
        " without the flight recorder, for which no memory could be had");
  }

  // With observers_mutex_ held.
  Status NeedMetrics() {
    TF_HVD_RETURN_IF_ERROR(CheckRecorder("count"));
    if (metrics_ == nullptr) {
      metrics_ = std::make_unique<Metrics>(recorder_.get(), topology().rank,
                                           topology().size);
    }
    return Status::Ok();
  }

  void StopMetrics() {
    const std::lock_guard<std::mutex> lock(observers_mutex_);
    metrics_file_.reset();
  }

  // Called by the holder of the progress lock, and before there is one.
  void OnSet(int32_t set, const SetMembers& members) {
    const std::lock_guard<std::mutex> lock(ForkSafeMutex());
    if (members == nullptr) {
      sets_.erase(set);
    } else {
      sets_[set] = members;
    }
  }

  // Guarded by ForkSafeMutex.
  std::map<int32_t, SetMembers> sets_;
  std::mutex shutdown_mutex_;  // one Shutdown at a time
  std::atomic<bool> finished_{false};
  std::atomic<int> submitting_{0};  // threads inside Submit
  std::atomic<int64_t> submitted_{0};

  const int64_t timeline_limit_;

  // Destroyed in the reverse order: the engine's background thread ends first.
  const std::unique_ptr<Recorder> recorder_;
  std::mutex observers_mutex_;
  std::unique_ptr<Timeline> timeline_;  // guarded by observers_mutex_
  std::unique_ptr<Metrics> metrics_;    // guarded by observers_mutex_
  // Guarded by observers_mutex_.
  std::unique_ptr<MetricsFile> metrics_file_;
  const std::unique_ptr<World> world_;
  TensorQueue queue_;
  Cycle cycle_;
  ProgressEngine engine_;
};

Runtime::Runtime(const Config& config, std::unique_ptr<World> world,
                 std::unique_ptr<Recorder> recorder)
    : impl_(std::make_unique<Impl>(config, std::move(world),
                                   std::move(recorder))) {}

Runtime::~Runtime() = default;

void Runtime::Submit(Entry entry) { impl_->Submit(std::move(entry)); }

void Runtime::NoteCompilation(const std::string& step) {
  impl_->NoteCompilation(step);
}

void Runtime::Shutdown(const std::string& reason, bool through) {
  impl_->Shutdown(reason, through);
}

const Topology& Runtime::topology() const { return impl_->topology(); }

GpuDevices* Runtime::gpus() const { return impl_->gpus(); }

SetMembers Runtime::SetRanks(int32_t set) const { return impl_->SetRanks(set); }

int32_t Runtime::FindSet(const std::vector<int>& ranks) const {
  return impl_->FindSet(ranks);
}

int64_t Runtime::SubmittedCount() const { return impl_->submitted(); }

Status Runtime::StartTimeline(const std::string& path, bool mark_cycles) {
  return impl_->StartTimeline(path, mark_cycles);
}

void Runtime::StopTimeline() { impl_->StopTimeline(); }

Status Runtime::ReadMetrics(MetricsTotals* totals) {
  return impl_->ReadMetrics(totals);
}

Status Runtime::StartMetricsFile(const std::string& path) {
  return impl_->StartMetricsFile(path);
}

std::unique_ptr<Timeline> Runtime::Trace(std::shared_ptr<TraceForm> form) {
  return impl_->Trace(std::move(form));
}

std::string Runtime::EndText() const { return impl_->EndText(); }

}  // namespace tf_hvd
