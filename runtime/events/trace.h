// Trace: the content of a timeline, and its forms: Chrome's JSON for a file,
// and lines of a profile (kernels/profiler.cc). Pure; one thread.
//
// A track is a row of a viewer; its spans are disjoint or nested.
#ifndef TF_HVD_RUNTIME_EVENTS_TRACE_H_
#define TF_HVD_RUNTIME_EVENTS_TRACE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace tf_hvd {

// The rank that the trace belongs to.
struct TraceHead {
  int rank = 0;
  int size = 1;
  std::string host;
  int process = 0;
  // One moment in nanoseconds, by the realtime clock and by the clock of the
  // times.
  int64_t realtime_ns = 0;
  int64_t time_ns = 0;
};

// A name with a number or a text.
struct TraceValue {
  std::string_view name;
  std::variant<int64_t, std::string_view> value;
};

struct TraceSpan {
  std::string_view name;
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  std::vector<TraceValue> values;
};

class TraceForm {
 public:
  virtual ~TraceForm() = default;

  // Starts a file: each file can be read without the previous one.
  virtual void Begin(const TraceHead& head, std::string* out) = 0;
  // Declares a track; `track` is a number in this trace, from 0. Repeated in
  // each file.
  virtual void Track(int track, std::string_view name, std::string* out) = 0;
  // A span precedes the spans that it contains; otherwise start times never
  // decrease. A contained span ends no later than its container.
  virtual void Spans(int track, const std::vector<TraceSpan>& spans,
                     std::string* out) = 0;
  virtual void Instant(int track, std::string_view name, int64_t time_ns,
                       std::string* out) = 0;
  // `unit`: "bytes", "ns" or "count".
  virtual void Counter(std::string_view name, std::string_view unit,
                       int64_t time_ns, int64_t value, std::string* out) = 0;
};

// Chrome's JSON array of events. It may be cut off anywhere: viewers do not
// need the closing bracket.
std::unique_ptr<TraceForm> MakeTraceJson();

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_EVENTS_TRACE_H_
