// CallReader: reads a recorder continuously and returns the calls that have
// ended since the last look, and the step of each. A step is the interval
// between two calls with the same name. Counts calls that were overwritten
// before they were read.
#ifndef TF_HVD_RUNTIME_EVENTS_CALL_READER_H_
#define TF_HVD_RUNTIME_EVENTS_CALL_READER_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "runtime/events/exposure.h"
#include "runtime/events/recorder.h"

namespace tf_hvd {

// One thread.
class CallReader {
 public:
  struct Step {
    int64_t first_submitted_ns = 0;
    int64_t next_ns = 0;  // when the next step began
    // Calls that have ended; once taken, in the order in which they were
    // submitted.
    std::vector<RecordedCall> calls;
    std::vector<Interval> exposed;  // exposed intervals (Exposure), once taken
    int64_t open = 0;               // number of calls that have not ended
  };

  // `recorder` outlives the reader. Ignores calls recorded before.
  explicit CallReader(const Recorder* recorder);

  // Returns the calls that have ended since the last look.
  std::vector<RecordedCall> Look();

  // The steps that have ended and in which all calls have ended; each once, in
  // order.
  std::vector<Step> TakeSteps();

  // Whether a call of the operation has not ended.
  bool IsOpen(uint64_t operation) const {
    return open_in_.count(operation) > 0;
  }

  // All calls submitted before this time have been read, and the same as of the
  // previous look.
  int64_t horizon_ns() const { return horizon_ns_; }
  int64_t settled_ns() const { return settled_ns_; }

  // Calls that have not ended.
  size_t open() const { return open_.size(); }

  uint64_t dropped() const { return dropped_; }

 private:
  struct Open {
    uint64_t number;
    uint64_t step;
    int64_t submitted_ns;
  };

  void NoteNew();
  void NoteStep(const RecordedCall& call);
  void NoteOpen();

  const Recorder* const recorder_;
  uint64_t next_;  // the next unread call
  std::deque<Open> open_;
  std::set<uint64_t> open_in_;  // operations
  int64_t horizon_ns_ = 0;
  int64_t settled_ns_ = 0;
  uint64_t dropped_ = 0;
  std::map<uint64_t, Step> steps_;
  Exposure exposure_;
  uint64_t step_ = 0;             // number of the current step
  std::set<std::string> called_;  // names called in this step
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_EVENTS_CALL_READER_H_
