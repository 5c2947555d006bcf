// Metrics: running totals of this rank's collectives, kept by a separate thread
// that follows the recorder. MetricsFile: writes the totals to a file
// periodically.
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

// Of one rank, since counting started.
struct MetricsTotals {
  int64_t counted_ns = 0;  // duration of counting
  int64_t calls = 0;       // that have ended
  int64_t failed = 0;      // how many of them failed
  int64_t bytes = 0;       // size of this rank's tensors in these calls
  int64_t in_flight = 0;   // calls that have not ended
  // Calls that were overwritten unread; not in the other totals.
  int64_t dropped = 0;
  // For whole steps:
  int64_t steps = 0;
  int64_t step_bytes = 0;     // size of this rank's tensors in their calls
  int64_t step_ns = 0;        // their duration
  int64_t collective_ns = 0;  // of that, with a call in flight
  // Of that, the exposed time (runtime/events/exposure.h): while data moved, or
  // while waiting for a rank's call.
  int64_t transfer_ns = 0;
  std::vector<int64_t> waiting_ns;  // by the rank waited for
};

// Adds a step of rank `rank`. Pure.
void AddStep(const CallReader::Step& step, int rank, MetricsTotals* totals);

// The totals as text in the OpenMetrics format, which Prometheus' original
// parser accepts too.
std::string OpenMetrics(const MetricsTotals& totals, int rank);

class Metrics {
 public:
  // Starts counting. `recorder` outlives this object.
  Metrics(const Recorder* recorder, int rank, int size);
  ~Metrics();

  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // Any thread. Totals of calls that have ended, and of steps that another step
  // has followed.
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
  // Writes `metrics`, which outlives this object, to this rank's file
  // (RankFile): now, every few seconds, and at the end. An existing file is
  // replaced immediately. An InvalidArgument if the file cannot be written. Any
  // thread.
  static Status Start(const std::string& path, Metrics* metrics,
                      std::unique_ptr<MetricsFile>* file);
  // Gives up if the disk takes longer than a few seconds.
  ~MetricsFile();

  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;

 private:
  struct Shared;
  explicit MetricsFile(std::shared_ptr<Shared> shared);

  // Shared with the thread, as in Timeline.
  const std::shared_ptr<Shared> shared_;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_EVENTS_METRICS_H_
