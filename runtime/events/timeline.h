// Timeline: makes a trace of this rank's calls as they happen, on a separate
// thread, and writes it to a file. If the file is too slow, events are dropped
// and counted; no call waits for it.
#ifndef TF_HVD_RUNTIME_EVENTS_TIMELINE_H_
#define TF_HVD_RUNTIME_EVENTS_TIMELINE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/status.h"
#include "runtime/events/phases.h"
#include "runtime/events/recorder.h"
#include "runtime/events/trace.h"

namespace tf_hvd {

struct TraceNames;

struct TimelineSettings {
  // Rank 0's file; rank 3's is trace.rank-3.json for trace.json.
  std::string path;
  bool mark_cycles = false;
  // For all files of a rank together; 0: no limit. A file is full at half of
  // this size. It is then kept as trace.before.json until the next one is full.
  int64_t limit_bytes = 0;
};

class Timeline {
 public:
  // The offset that converts times of this process's clock to rank 0's clock,
  // and its maximum error; a negative error: not known yet.
  struct Clock {
    int64_t offset_ns = 0;
    int64_t error_ns = -1;
  };

  // Any thread. An InvalidArgument if the file cannot be written, or does not
  // have a JSON file's name. All arguments outlive the timeline. `clock` is
  // called on other threads. If another timeline takes the phases, operations
  // are shown without phases.
  static Status Start(const TimelineSettings& settings, TraceHead head,
                      const Recorder* recorder, PhaseLog* phases,
                      std::function<Clock()> clock,
                      std::unique_ptr<Timeline>* timeline);

  // Any thread. Writes no file: `form` keeps the trace, and belongs to Stop's
  // caller afterwards. Uses this process's clock.
  static std::unique_ptr<Timeline> StartInMemory(
      std::shared_ptr<TraceForm> form, TraceHead head, const Recorder* recorder,
      PhaseLog* phases);

  // As Stop.
  ~Timeline();

  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  // Any thread. Writes everything that has ended so far; gives up if the file
  // takes longer than a few seconds.
  void Stop();

 private:
  struct Shared;
  Timeline(std::shared_ptr<Shared> shared, TraceHead head,
           const Recorder* recorder, PhaseLog* phases, const TraceNames& names,
           bool mark_cycles);

  // Shared with the thread, which may still be blocked in a write when
  // everything else is destroyed.
  const std::shared_ptr<Shared> shared_;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_EVENTS_TIMELINE_H_
