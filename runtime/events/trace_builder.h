// TraceBuilder: makes a trace from the recording, incrementally. Counts calls
// that were overwritten before they were read, or found no room.
//
// Its tracks: the calls that TensorFlow waits for; calls until they start
// (agreement); operations, by backend; counters. Overlapping spans are spread
// over several tracks with the same name.
#ifndef TF_HVD_RUNTIME_EVENTS_TRACE_BUILDER_H_
#define TF_HVD_RUNTIME_EVENTS_TRACE_BUILDER_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/events/call_reader.h"
#include "runtime/events/phases.h"
#include "runtime/events/recorder.h"
#include "runtime/events/trace.h"

namespace tf_hvd {

// The names that viewers show.
struct TraceNames {
  const char* negotiate;  // the operation's name follows
  const char* queue;
  // By Phase; for kWait the rank's number is appended; null: the backend and
  // the operation, as MPI_ALLREDUCE.
  const char* phases[5];
  const char* cycle;
};

// The names of Horovod's timeline, as far as it has them.
extern const TraceNames kHorovodTraceNames;
extern const TraceNames kTraceNames;

// One thread.
class TraceBuilder {
 public:
  // All arguments outlive the builder. Ignores calls recorded before. `phases`
  // may be null: operations are then shown without phases.
  TraceBuilder(TraceHead head, const Recorder* recorder, PhaseLog* phases,
               TraceForm* form, const TraceNames& names, bool mark_cycles);

  // Starts a file.
  void Begin(std::string* out);

  // Appends everything that has ended since. `offset_ns` is added to all times,
  // and `error_ns` is its maximum error; negative: unknown.
  void Build(int64_t offset_ns, int64_t error_ns, std::string* out);

  uint64_t dropped() const {
    return reader_.dropped() + (phases_ == nullptr ? 0 : phases_->dropped());
  }

 private:
  // A track, and further tracks of the same name for overlapping spans.
  struct Lanes {
    int first = 0;
    std::string name;
    std::vector<std::vector<Interval>> taken;
  };
  // A number of things in flight.
  struct Counter {
    const char* name;
    const char* unit;
    int64_t value = 0;
    std::multimap<int64_t, int64_t> changes{};  // by time, not yet written
  };
  struct Operation {
    std::vector<RecordedCall> calls;
    std::vector<PhaseSpan> phases;
  };
  void Ended(const RecordedCall& call);
  void PutCall(const RecordedCall& call, std::string* out);
  void PutOperations(std::string* out);
  void PutOperation(uint64_t number, const Operation& one, std::string* out);
  void PutCycle(const RecordedCall& call, std::string* out);
  void PutWaits(std::string* out);
  void PutCounter(Counter* counter, std::string* out);
  int TrackFor(Lanes* lanes, Interval taken, std::string* out);
  Lanes* LanesOf(const std::string& backend);
  void Tell(int track, const std::string& name, std::string* out);
  int64_t At(int64_t time_ns) const { return time_ns + offset_ns_; }

  const TraceHead head_;
  PhaseLog* const phases_;
  TraceForm* const form_;
  const TraceNames& names_;
  const bool mark_cycles_;
  int64_t offset_ns_ = 0;
  int64_t told_error_ns_ = 0;

  CallReader reader_;
  uint64_t told_dropped_ = 0;  // as last written to this file

  std::map<uint64_t, Operation> operations_;
  std::vector<PhaseSpan> spans_;
  Lanes agreement_;
  std::map<std::string, Lanes> backends_;
  std::map<int, std::string> told_;  // tracks
  Counter bytes_{"bytes in flight", "bytes"};
  Counter under_way_{"operations in flight", "count"};
  std::set<int64_t> cycles_;  // with recent calls
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_EVENTS_TRACE_BUILDER_H_
