// Metrics: sums of what this rank's collectives have taken, kept up to date
// while they are made, by a thread of its own that follows the recorder.
// MetricsFile: writes them to a file, again and again.
#ifndef TF_HVD_RUNTIME_EVENTS_METRICS_H_
#define TF_HVD_RUNTIME_EVENTS_METRICS_H_

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "runtime/events/call_reader.h"
#include "runtime/events/recorder.h"

namespace tf_hvd {

// Of one rank, since it began to count.
struct MetricsTotals {
  int64_t counted_ns = 0;  // for so long
  int64_t calls = 0;       // that have ended
  int64_t failed = 0;      // of them
  int64_t bytes = 0;       // of this rank's tensors in them
  int64_t in_flight = 0;   // calls that have not ended
  int64_t dropped = 0;     // calls that nothing else here knows of
  // Of whole steps:
  int64_t steps = 0;
  int64_t step_bytes = 0;     // of this rank's tensors in their calls
  int64_t step_ns = 0;        // they took
  int64_t collective_ns = 0;  // of that, with a call in flight
  // Of that, exposed (runtime/events/exposure.h): data moved, or a rank's call
  // was waited for.
  int64_t transfer_ns = 0;
  std::vector<int64_t> waiting_ns;  // by rank
};

// Adds a step of rank `rank`. Pure.
void AddStep(const CallReader::Step& step, int rank, MetricsTotals* totals);

// As text in OpenMetrics' form, which Prometheus' own parser takes too.
std::string OpenMetrics(const MetricsTotals& totals, int rank);

class Metrics {
 public:
  // Counts from now on. `recorder` outlives it.
  Metrics(const Recorder* recorder, int rank, int size);
  ~Metrics();

  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // Any thread. What has ended until now; steps, those that another has
  // followed.
  MetricsTotals Read();

  int rank() const { return rank_; }

 private:
  void Look() REQUIRES(mutex_);
  void Run();

  const int rank_;
  const int64_t begun_ns_;
  Mutex mutex_;
  std::condition_variable changed_;
  bool ended_ GUARDED_BY(mutex_) = false;
  CallReader reader_ GUARDED_BY(mutex_);
  MetricsTotals totals_ GUARDED_BY(mutex_);
  std::thread thread_;
};

class MetricsFile {
 public:
  // Writes `metrics`, which outlives it, to this rank's file (RankFile) now, at
  // the end, and every few seconds between; what was there is replaced at once.
  // An InvalidArgument where it cannot be written to. Any thread.
  static Status Start(const std::string& path, Metrics* metrics,
                      std::unique_ptr<MetricsFile>* file);
  // Gives up on a disk that takes longer than a few seconds.
  ~MetricsFile();

  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;

 private:
  struct Shared;
  explicit MetricsFile(std::shared_ptr<Shared> shared);

  // The thread's too, as in Timeline.
  const std::shared_ptr<Shared> shared_;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_EVENTS_METRICS_H_
