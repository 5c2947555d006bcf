// Timeline: makes a trace of this rank's calls while they are made, by a thread
// of its own, and writes it to a file. What the file is too slow for is left
// out, and counted: nothing waits for it.
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
  // Rank 0's file; that of rank 3 of trace.json is trace.rank-3.json.
  std::string path;
  bool mark_cycles = false;
  // Of a rank's files together; 0: none. With half of it a file is full, which
  // is kept as trace.before.json until the next one is.
  int64_t limit_bytes = 0;
};

class Timeline {
 public:
  // What is to be added to times of this process' clock for those of rank 0's,
  // and by how much that may be wrong; the error negative: it is not known yet.
  struct Clock {
    int64_t offset_ns = 0;
    int64_t error_ns = -1;
  };

  // Any thread. An InvalidArgument where the file cannot be written to, or is
  // named as if it were not JSON. All outlive the timeline. `clock` is asked on
  // other threads. If somebody else takes the phases, operations are shown
  // whole.
  static Status Start(const TimelineSettings& settings, TraceHead head,
                      const Recorder* recorder, PhaseLog* phases,
                      std::function<Clock()> clock,
                      std::unique_ptr<Timeline>* timeline);

  // Any thread. Has no file: what `form` is told it keeps, which is Stop's
  // caller's from then on. By this process' clock.
  static std::unique_ptr<Timeline> StartInMemory(
      std::shared_ptr<TraceForm> form, TraceHead head, const Recorder* recorder,
      PhaseLog* phases);

  // As Stop.
  ~Timeline();

  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  // Any thread. Writes what has ended until now; gives up on a file that takes
  // longer than a few seconds.
  void Stop();

 private:
  struct Shared;
  Timeline(std::shared_ptr<Shared> shared, TraceHead head,
           const Recorder* recorder, PhaseLog* phases, const TraceNames& names,
           bool mark_cycles);

  // The thread's too: it may be held up in a write when everything else is
  // gone.
  const std::shared_ptr<Shared> shared_;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_EVENTS_TIMELINE_H_
