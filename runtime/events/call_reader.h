// CallReader: follows a recorder: which calls have ended since the
// last look, and to which step each belongs. A step goes from a call to the
// next one of the same name. What was written over before it was read is
// counted.
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
    int64_t next_ns = 0;  // when the next one began
    // That have ended; in the order in which they were submitted, once taken.
    std::vector<RecordedCall> calls;
    std::vector<Interval> exposed;  // as Exposure has it, once taken
    int64_t open = 0;               // that have not
  };

  // `recorder` outlives the reader. What was recorded before is left out.
  explicit CallReader(const Recorder* recorder);

  // Returns the calls that have ended since the last look.
  std::vector<RecordedCall> Look();

  // The steps whose calls have all ended, and that another one has followed;
  // each once, in order.
  std::vector<Step> TakeSteps();

  // Whether a call of the operation has not ended.
  bool IsOpen(uint64_t operation) const {
    return open_in_.count(operation) > 0;
  }

  // All that was submitted before that has been read; and that of the look
  // before.
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
  uint64_t next_;  // call that has not been seen
  std::deque<Open> open_;
  std::set<uint64_t> open_in_;  // operations
  int64_t horizon_ns_ = 0;
  int64_t settled_ns_ = 0;
  uint64_t dropped_ = 0;
  std::map<uint64_t, Step> steps_;
  Exposure exposure_;
  uint64_t step_ = 0;             // that is going on
  std::set<std::string> called_;  // names, in this step
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_EVENTS_CALL_READER_H_
