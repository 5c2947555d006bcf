// Runtime: one rank's part of the job. Owns the queue, the controller of the
// counting tree, the executor, the background thread and the world, and ends
// them in the right order.
//
// One process can have any number of runtimes (ranks as threads in the tests);
// the C API holds the one that TensorFlow's kernels use.
#ifndef TF_HVD_RUNTIME_API_RUNTIME_H_
#define TF_HVD_RUNTIME_API_RUNTIME_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/config.h"
#include "base/main_thread.h"
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
  // Calls Shutdown("runtime destroyed", false) if Shutdown was not called.
  virtual ~Runtime() = default;

  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  // Any thread; never blocks for other ranks. The entry's completion is fired
  // exactly once, perhaps before this returns, on this or another thread. In a
  // forked child it fails immediately, and no other rank is notified.
  virtual void Submit(Entry entry) = 0;

  // Any thread. XLA has started to compile a step. Until the next Submit,
  // reports to ranks that wait for this one mention the compilation.
  virtual void NoteCompilation(const std::string& step) = 0;

  // Any thread except one that fires a completion. Announces to the other ranks
  // that this one leaves, for `reason`, and waits until they need nothing more
  // from it (at most about 7 s). `through`: this rank made all of its calls and
  // did not fail.
  virtual void Shutdown(const std::string& reason, bool through) = 0;

  virtual const Topology& topology() const = 0;

  // This process's GPUs; null if there are none. Any thread.
  virtual GpuDevices* gpus() const = 0;

  // Ranks of a set; null if the set does not exist. Any thread.
  virtual SetMembers SetRanks(int32_t set) const = 0;

  // The highest number of a set with these ranks; -1 if none exists. Any
  // thread.
  virtual int32_t FindSet(const std::vector<int>& ranks) const = 0;

  // Number of requests submitted so far on this rank. Any thread; see
  // tf_hvd_submitted_count.
  virtual int64_t SubmittedCount() const = 0;

  // Any thread. Starts writing a timeline of this rank; only one at a time.
  virtual Status StartTimeline(const std::string& path, bool mark_cycles) = 0;
  // Any thread. Does nothing without a timeline.
  virtual void StopTimeline() = 0;
  // Any thread. Totals of this rank's collectives since the first call of this
  // function or the next one.
  virtual Status ReadMetrics(MetricsTotals* totals) = 0;
  // Any thread; once. Starts writing these totals to a file.
  virtual Status StartMetricsFile(const std::string& path) = 0;
  // Any thread. A timeline in the form `form`, which must end before the
  // runtime; null without a recorder.
  virtual std::unique_ptr<Timeline> Trace(std::shared_ptr<TraceForm> form) = 0;

  // Why no more calls are accepted; empty while they are. Any thread; has the
  // text before a call fails for this reason. Needs a recorder.
  virtual std::string EndText() const = 0;
};

// Takes ownership of `world` and starts the background thread (none for one
// rank). `recorder`: records the calls; null: none. `main_thread`: reports the
// program's current line, and outlives the runtime; null: not available.
std::unique_ptr<Runtime> MakeRuntime(
    const Config& config, std::unique_ptr<World> world,
    std::unique_ptr<Recorder> recorder = nullptr,
    MainThread* main_thread = nullptr);

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_API_RUNTIME_H_
