// Shows this rank's collectives in TensorFlow's profiler, as separate lines
// among the host's threads, next to TensorFlow's own computation. Active only
// while the profiler records.
#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "kernels/tf_compat.h"
#include "runtime/api/c_api.h"
#include "runtime/api/runtime.h"
#include "runtime/events/timeline.h"
#include "runtime/events/trace.h"
#include "tsl/profiler/lib/profiler_factory.h"
#include "tsl/profiler/lib/profiler_interface.h"
#include "tsl/profiler/protobuf/profiler_options.pb.h"
#include "tsl/profiler/protobuf/xplane.pb.h"

namespace tf_hvd {
namespace {

using tf::profiler::XEvent;
using tf::profiler::XLine;
using tf::profiler::XPlane;
using tf::profiler::XSpace;

// TensorFlow's name for the plane that has the host's threads as lines.
constexpr char kHostPlane[] = "/host:CPU";
constexpr int64_t kPsPerNs = 1000;

template <typename Map>
int64_t FreeKey(const Map& map) {
  int64_t key = 0;
  for (const auto& [taken, value] : map) key = std::max(key, taken);
  return key + 1;
}

// Names of a plane's events or of their statistics.
template <typename Map>
class Names {
 public:
  explicit Names(Map* map) : map_(map), next_(FreeKey(*map)) {}

  int64_t Id(const std::string& name) {
    const auto [known, added] = ids_.try_emplace(name, next_);
    if (added) {
      auto& metadata = (*map_)[next_++];
      metadata.set_id(known->second);
      metadata.set_name(name);
    }
    return known->second;
  }

 private:
  Map* const map_;
  int64_t next_;
  std::map<std::string, int64_t> ids_;
};

// Keeps all events until they are added to a profile. The trace's counters are
// dropped: thread lines cannot show them.
class Lines : public TraceForm {
 public:
  void Begin(const TraceHead& head, std::string* /*out*/) override {
    to_realtime_ns_ = head.realtime_ns - head.time_ns;
  }
  void Track(int track, std::string_view name, std::string* /*out*/) override {
    lines_[track].name = "tf_hvd " + std::string(name);
  }
  void Spans(int track, const std::vector<TraceSpan>& spans,
             std::string* /*out*/) override {
    for (const TraceSpan& span : spans) {
      Span kept = {std::string(span.name), span.begin_ns, span.end_ns, {}};
      for (const TraceValue& value : span.values) {
        kept.values.emplace_back(value.name, Kept(value));
      }
      lines_[track].spans.push_back(std::move(kept));
    }
  }
  void Instant(int, std::string_view, int64_t, std::string*) override {}
  void Counter(std::string_view, std::string_view, int64_t, int64_t,
               std::string*) override {}

  void AddTo(XPlane* plane) const {
    Names events(plane->mutable_event_metadata());
    Names stats(plane->mutable_stat_metadata());
    // Thread lines have numbers derived from addresses; viewers show the lowest
    // number first.
    int64_t id = 0;
    for (const auto& [track, line] : lines_) {
      if (line.spans.empty()) continue;
      XLine* const added = plane->add_lines();
      added->set_id(++id);
      added->set_name(line.name);
      const int64_t begin_ns = line.spans.front().begin_ns;
      added->set_timestamp_ns(begin_ns + to_realtime_ns_);
      for (const Span& span : line.spans) {
        XEvent* const event = added->add_events();
        event->set_metadata_id(events.Id(span.name));
        event->set_offset_ps((span.begin_ns - begin_ns) * kPsPerNs);
        event->set_duration_ps((span.end_ns - span.begin_ns) * kPsPerNs);
        for (const auto& [name, value] : span.values) {
          auto* const stat = event->add_stats();
          stat->set_metadata_id(stats.Id(name));
          if (const auto* number = std::get_if<int64_t>(&value)) {
            stat->set_int64_value(*number);
          } else {
            stat->set_str_value(std::get<std::string>(value));
          }
        }
      }
    }
  }

 private:
  using Value = std::variant<int64_t, std::string>;
  struct Span {
    std::string name;
    int64_t begin_ns;
    int64_t end_ns;
    std::vector<std::pair<std::string, Value>> values;
  };
  struct Line {
    std::string name;
    std::vector<Span> spans;
  };

  static Value Kept(const TraceValue& value) {
    if (const auto* number = std::get_if<int64_t>(&value.value)) return *number;
    return std::string(std::get<std::string_view>(value.value));
  }

  int64_t to_realtime_ns_ = 0;
  std::map<int, Line> lines_;
};

XPlane* HostPlane(XSpace* space) {
  for (XPlane& plane : *space->mutable_planes()) {
    if (plane.name() == kHostPlane) return &plane;
  }
  XPlane* const plane = space->add_planes();
  plane->set_name(kHostPlane);
  return plane;
}

class Profiler : public tsl::profiler::ProfilerInterface {
 public:
  explicit Profiler(std::shared_ptr<Runtime> runtime)
      : runtime_(std::move(runtime)) {}

  absl::Status Start() override {
    timeline_ = runtime_->Trace(lines_);
    return absl::OkStatus();
  }

  absl::Status Stop() override {
    timeline_.reset();
    return absl::OkStatus();
  }

  absl::Status CollectData(XSpace* space) override {
    lines_->AddTo(HostPlane(space));
    return absl::OkStatus();
  }

 private:
  const std::shared_ptr<Runtime> runtime_;
  const std::shared_ptr<Lines> lines_ = std::make_shared<Lines>();
  std::unique_ptr<Timeline> timeline_;
};

std::unique_ptr<tsl::profiler::ProfilerInterface> MakeProfiler(
    const tf::ProfileOptions& options) {
  std::shared_ptr<Runtime> runtime = DefaultRuntime();
  if (options.host_tracer_level() == 0 || runtime == nullptr) return nullptr;
  return std::make_unique<Profiler>(std::move(runtime));
}

const bool registered = [] {
  tsl::profiler::RegisterProfilerFactory(MakeProfiler);
  return true;
}();

}  // namespace
}  // namespace tf_hvd
