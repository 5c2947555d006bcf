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

#include "base/config.h"
#include "base/status.h"
#include "runtime/contract/world.h"
#include "runtime/events/metrics.h"
#include "runtime/events/recorder.h"
#include "runtime/events/timeline.h"
#include "runtime/request/entry.h"

namespace tf_hvd {

class Runtime {
 public:
  Runtime() = default;
  // Ends as Shutdown("runtime destroyed", false) if that was not called.
  virtual ~Runtime() = default;

  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  // Any thread; never blocks for other ranks. The entry's completion is fired
  // exactly once, perhaps before this returns, on this or another thread. In a
  // forked child it fails at once, and nobody hears of it.
  virtual void Submit(Entry entry) = 0;

  // Any thread. XLA has begun to compile a step: until the next Submit, ranks
  // that wait for this one are told so.
  virtual void NoteCompilation(const std::string& step) = 0;

  // Any thread but one that fires a completion. Tells the other ranks that this
  // one leaves, for `reason`, and waits until it owes nothing to anybody (at
  // most about 7 s). `through`: it has made all calls that it wanted to, rather
  // than failed.
  virtual void Shutdown(const std::string& reason, bool through) = 0;

  virtual const Topology& topology() const = 0;

  // This process' GPUs; null if there are none. Any thread.
  virtual GpuDevices* gpus() const = 0;

  // Ranks of a set; null if there is no such set. Any thread.
  virtual SetMembers SetRanks(int32_t set) const = 0;

  // The highest number of a set with these ranks; -1 if there is none. Any
  // thread.
  virtual int32_t FindSet(const std::vector<int>& ranks) const = 0;

  // Requests submitted so far on this rank. Any thread; see
  // tf_hvd_submitted_count.
  virtual int64_t SubmittedCount() const = 0;

  // Any thread. Writes a timeline from now on, of what this rank does; one at a
  // time.
  virtual Status StartTimeline(const std::string& path, bool mark_cycles) = 0;
  // Any thread. Does nothing if there is none.
  virtual void StopTimeline() = 0;
  // Any thread. What this rank's collectives have taken since the first call of
  // this or the next.
  virtual Status ReadMetrics(MetricsTotals* totals) = 0;
  // Any thread; once. Writes that to a file from now on.
  virtual Status StartMetricsFile(const std::string& path) = 0;
  // Any thread. A timeline for `form`, which lasts no longer than this; null
  // without a recorder.
  virtual std::unique_ptr<Timeline> Trace(std::shared_ptr<TraceForm> form) = 0;

  // Why no more calls can be made; empty while they can. Any thread; has the
  // text before a call fails for it. Needs a recorder.
  virtual std::string EndText() const = 0;
};

// Takes over `world` and starts the background thread (none for one rank).
// `recorder`: what becomes of the calls is written down there; null: nowhere.
std::unique_ptr<Runtime> MakeRuntime(
    const Config& config, std::unique_ptr<World> world,
    std::unique_ptr<Recorder> recorder = nullptr);

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_API_RUNTIME_H_
