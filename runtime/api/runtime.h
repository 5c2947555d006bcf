// Runtime: one rank's part of the job. Owns the queue, the controller of the
// counting tree, the executor, the background thread and the world, and ends
// them in the right order.
//
// Any number of runtimes fit in one process (ranks as threads in the tests);
// the C API holds the one that TensorFlow's kernels use.
#ifndef TF_HVD_RUNTIME_API_RUNTIME_H_
#define TF_HVD_RUNTIME_API_RUNTIME_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/config.h"
#include "runtime/base/status.h"
#include "runtime/events/metrics.h"
#include "runtime/events/recorder.h"
#include "runtime/events/timeline.h"
#include "runtime/request/entry.h"
#include "runtime/transport/world.h"

namespace tf_hvd {

class Runtime {
 public:
  // Takes over `world` and starts the background thread (none for one rank).
  // `recorder`: what becomes of the calls is written down there; null: nowhere.
  Runtime(const Config& config, std::unique_ptr<World> world,
          std::unique_ptr<Recorder> recorder = nullptr);

  // Ends as Shutdown("runtime destroyed", false) if that was not called.
  ~Runtime();

  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  // Any thread; never blocks for other ranks. The entry's completion is fired
  // exactly once, perhaps before this returns, on this or another thread. In a
  // forked child it fails at once, and nobody hears of it.
  void Submit(Entry entry);

  // Any thread. XLA has begun to compile a step: until the next Submit, ranks
  // that wait for this one are told so.
  void NoteCompilation(const std::string& step);

  // Any thread but one that fires a completion. Tells the other ranks that this
  // one leaves, for `reason`, and waits until it owes nothing to anybody (at
  // most about 7 s). `through`: it has made all calls that it wanted to, rather
  // than failed.
  void Shutdown(const std::string& reason, bool through);

  const Topology& topology() const;

  // This process' GPUs; null if there are none. Any thread.
  GpuDevices* gpus() const;

  // Ranks of a set; null if there is no such set. Any thread.
  SetMembers SetRanks(int32_t set) const;

  // The highest number of a set with these ranks; -1 if there is none. Any
  // thread.
  int32_t FindSet(const std::vector<int>& ranks) const;

  // Requests submitted so far on this rank. Any thread; see
  // tf_hvd_submitted_count.
  int64_t SubmittedCount() const;

  // Any thread. Writes a timeline from now on, of what this rank does; one at a
  // time.
  Status StartTimeline(const std::string& path, bool mark_cycles);
  // Any thread. Does nothing if there is none.
  void StopTimeline();
  // Any thread. What this rank's collectives have taken since the first call of
  // this or the next.
  Status ReadMetrics(MetricsTotals* totals);
  // Any thread; once. Writes that to a file from now on.
  Status StartMetricsFile(const std::string& path);
  // Any thread. A timeline for `form`, which lasts no longer than this; null
  // without a recorder.
  std::unique_ptr<Timeline> Trace(std::shared_ptr<TraceForm> form);

  // Why no more calls can be made; empty while they can. Any thread; has the
  // text before a call fails for it. Needs a recorder.
  std::string EndText() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_API_RUNTIME_H_
