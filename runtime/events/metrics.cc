#include "runtime/events/metrics.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "runtime/events/rank_file.h"

namespace tf_hvd {
namespace {

// The recorder has room for the calls made meanwhile.
constexpr auto kTurn = std::chrono::milliseconds(20);
constexpr auto kFileTurn = std::chrono::seconds(5);
constexpr auto kPatience = std::chrono::seconds(5);
constexpr char kThreadName[] = "tf_hvd metrics";

std::vector<Interval> Union(std::vector<Interval> intervals) {
  std::sort(intervals.begin(), intervals.end());
  std::vector<Interval> merged;
  for (const Interval& one : intervals) {
    if (one.second <= one.first) continue;
    if (!merged.empty() && one.first <= merged.back().second) {
      merged.back().second = std::max(merged.back().second, one.second);
    } else {
      merged.push_back(one);
    }
  }
  return merged;
}

int64_t Sum(const std::vector<Interval>& intervals) {
  int64_t sum = 0;
  for (const Interval& one : intervals) sum += one.second - one.first;
  return sum;
}

// The data of a call moves from then on; if the call failed before, it never
// moves.
int64_t AgreedNs(const RecordedCall& call) {
  return call.agreed_ns == 0 ? call.ended_ns : call.agreed_ns;
}

// Adds an interval in which no data moved: it was a wait for the last rank to
// make the next call that all ranks have made.
void AddWaiting(const Interval& idle, const std::vector<Interval>& coming,
                int rank, MetricsTotals* totals) {
  int64_t at = idle.first;
  for (const auto& [agreed_ns, last] : coming) {
    if (agreed_ns <= at) continue;
    const int64_t until = std::min(agreed_ns, idle.second);
    if (last >= 0 && last != rank &&
        static_cast<size_t>(last) < totals->waiting_ns.size()) {
      totals->waiting_ns[static_cast<size_t>(last)] += until - at;
    }
    at = until;
    if (at == idle.second) return;
  }
}

// Empty, or the reason for a failure. Readers see the old text or the new one.
std::string Replace(const std::string& path, const std::string& text) {
  std::string why;
  const int file = PutFile(
      AT_FDCWD, path, 0666, [&text](int to) { return WriteAll(to, text); },
      &why);
  if (file >= 0) close(file);
  return why;
}

std::string Seconds(int64_t ns) {
  char text[32];
  std::snprintf(text, sizeof(text), "%lld.%09lld",
                static_cast<long long>(ns / kSecond),
                static_cast<long long>(ns % kSecond));
  return text;
}

}  // namespace

void AddStep(const CallReader::Step& step, int rank, MetricsTotals* totals) {
  ++totals->steps;
  totals->step_ns += step.next_ns - step.first_submitted_ns;
  std::vector<Interval> flights, coming;
  for (const RecordedCall& call : step.calls) {
    totals->step_bytes += call.bytes;
    flights.emplace_back(call.submitted_ns,
                         std::min(call.ended_ns, step.next_ns));
    coming.emplace_back(AgreedNs(call), call.last - 1);
  }
  totals->collective_ns += Sum(Union(std::move(flights)));
  std::sort(coming.begin(), coming.end());
  for (const auto& [from, until] : step.exposed) {
    std::vector<Interval> moving;
    for (const RecordedCall& call : step.calls) {
      if (call.ended_ns <= from || call.submitted_ns >= until) continue;
      moving.emplace_back(std::max(AgreedNs(call), from),
                          std::min(call.ended_ns, until));
    }
    moving = Union(std::move(moving));
    totals->transfer_ns += Sum(moving);
    moving.emplace_back(until, until);
    int64_t at = from;
    for (const auto& [begin, end] : moving) {
      AddWaiting({at, begin}, coming, rank, totals);
      at = end;
    }
  }
}

std::string OpenMetrics(const MetricsTotals& totals, int rank) {
  const std::string who = "rank=\"" + std::to_string(rank) + "\"";
  std::string text;
  const auto head = [&text](const std::string& name, const char* type,
                            const char* unit, const char* help) {
    text += "# TYPE " + name + " " + type + "\n";
    if (*unit != 0) text += "# UNIT " + name + " " + unit + "\n";
    text += "# HELP " + name + " " + help + "\n";
  };
  const auto count = [&](const std::string& name, const char* help,
                         int64_t value, const char* unit = "") {
    head(name, "counter", unit, help);
    text += name + "_total{" + who + "} " + std::to_string(value) + "\n";
  };
  const auto time = [&](const std::string& name, const char* help, int64_t ns) {
    head(name, "counter", "seconds", help);
    text += name + "_total{" + who + "} " + Seconds(ns) + "\n";
  };
  count("tf_hvd_calls", "Collectives that have ended.", totals.calls);
  count("tf_hvd_failed_calls", "Collectives that have failed.", totals.failed);
  count("tf_hvd_bytes", "Bytes of this rank's tensors in collectives.",
        totals.bytes, "bytes");
  count("tf_hvd_dropped_calls", "Collectives that were not counted.",
        totals.dropped);
  head("tf_hvd_calls_in_flight", "gauge", "", "Collectives in progress.");
  text += "tf_hvd_calls_in_flight{" + who + "} " +
          std::to_string(totals.in_flight) + "\n";
  count("tf_hvd_steps", "Whole steps.", totals.steps);
  time("tf_hvd_step_seconds", "Duration of whole steps.", totals.step_ns);
  time("tf_hvd_collective_seconds",
       "Part of the steps' duration with a collective in progress.",
       totals.collective_ns);
  time("tf_hvd_exposed_transfer_seconds",
       "Part of the steps' duration in which data moved, not hidden by "
       "computation.",
       totals.transfer_ns);
  head("tf_hvd_waiting_seconds", "counter", "seconds",
       "Part of the steps' duration spent waiting for that rank, not hidden by "
       "computation.");
  for (size_t k = 0; k < totals.waiting_ns.size(); ++k) {
    if (totals.waiting_ns[k] == 0) continue;
    text += "tf_hvd_waiting_seconds_total{" + who + ",waited_for=\"" +
            std::to_string(k) + "\"} " + Seconds(totals.waiting_ns[k]) + "\n";
  }
  return text + "# EOF\n";
}

Metrics::Metrics(const Recorder* recorder, int rank, int size)
    : rank_(rank), begun_ns_(NowNs()), reader_(recorder) {
  totals_.waiting_ns.resize(static_cast<size_t>(size));
  thread_ = std::thread([this] { Run(); });
  pthread_setname_np(thread_.native_handle(), kThreadName);
}

Metrics::~Metrics() {
  {
    const MutexLock lock(&mutex_);
    ended_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

MetricsTotals Metrics::Read() {
  const MutexLock lock(&mutex_);
  Look();
  return totals_;
}

void Metrics::Look() {
  for (const RecordedCall& call : reader_.Look()) {
    ++totals_.calls;
    if (call.code != StatusCode::kOk) ++totals_.failed;
    totals_.bytes += call.bytes;
  }
  for (const CallReader::Step& step : reader_.TakeSteps()) {
    AddStep(step, rank_, &totals_);
  }
  totals_.counted_ns = NowNs() - begun_ns_;
  totals_.in_flight = static_cast<int64_t>(reader_.open());
  totals_.dropped = static_cast<int64_t>(reader_.dropped());
}

void Metrics::Run() {
  MutexLock lock(&mutex_);
  while (!ended_) {
    Look();
    changed_.wait_for(lock.native(), kTurn,
                      [this]() REQUIRES(mutex_) { return ended_; });
  }
}

struct MetricsFile::Shared {
  Shared(std::string to, Metrics* of) : path(std::move(to)), metrics(of) {}

  const std::string path;

  Mutex mutex;
  std::condition_variable changed;
  Metrics* metrics GUARDED_BY(mutex);      // null: ended
  std::string last GUARDED_BY(mutex);      // the final text
  bool written GUARDED_BY(mutex) = false;  // the thread has ended

  void Run();
};

void MetricsFile::Shared::Run() {
  MutexLock lock(&mutex);
  bool ended = false;
  std::string told;
  while (!ended) {
    changed.wait_for(lock.native(), kFileTurn,
                     [this]() REQUIRES(mutex) { return metrics == nullptr; });
    ended = metrics == nullptr;
    const std::string text =
        ended ? last : OpenMetrics(metrics->Read(), metrics->rank());
    lock.Unlock();
    const std::string why = Replace(path, text);
    if (!why.empty() && why != told) {
      WriteLog(LogLevel::kWarning, "metrics",
               path + " cannot be written: " + why);
    }
    told = why;
    lock.Lock();
  }
  written = true;
  changed.notify_all();
}

Status MetricsFile::Start(const std::string& path, Metrics* metrics,
                          std::unique_ptr<MetricsFile>* file) {
  const auto shared =
      std::make_shared<Shared>(RankFile(path, metrics->rank()), metrics);
  const std::string why =
      Replace(shared->path, OpenMetrics(metrics->Read(), metrics->rank()));
  if (!why.empty()) {
    return InvalidArgument("the metrics cannot be written to " + shared->path +
                           ": " + why);
  }
  file->reset(new MetricsFile(shared));
  return Status::Ok();
}

MetricsFile::MetricsFile(std::shared_ptr<Shared> shared)
    : shared_(std::move(shared)) {
  std::thread thread([shared = shared_] { shared->Run(); });
  pthread_setname_np(thread.native_handle(), kThreadName);
  thread.detach();
}

MetricsFile::~MetricsFile() {
  MutexLock lock(&shared_->mutex);
  Metrics* const metrics = std::exchange(shared_->metrics, nullptr);
  shared_->last = OpenMetrics(metrics->Read(), metrics->rank());
  shared_->changed.notify_all();
  shared_->changed.wait_for(
      lock.native(), kPatience,
      [this]() REQUIRES(shared_->mutex) { return shared_->written; });
}

}  // namespace tf_hvd
