// Recorder: a rank's flight recorder, always on. The last calls of the rank lie
// in a file that is mapped, so that they can be read from outside at any time,
// and after the process was killed: nothing has to be dumped.
//
// CallRecord: one call's slot in it. Its writers follow one another: who
// submits, then the holders of the progress lock, then who fires the
// completion.
#ifndef TF_HVD_RUNTIME_EVENTS_RECORDER_H_
#define TF_HVD_RUNTIME_EVENTS_RECORDER_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/open_file.h"
#include "runtime/base/status.h"
#include "runtime/base/types.h"
#include "runtime/events/phases.h"
#include "runtime/events/recording.h"

namespace tf_hvd {

class Recorder;

// Of a call that is not recorded all of this does nothing, and so it does once
// the ring has come round and another call has the slot.
class CallRecord {
 public:
  CallRecord() = default;

  // It is in order, at this place of its set's; `last`: the rank that made it
  // last.
  void Agreed(int64_t order, int last, int64_t now_ns);
  // With all calls of the same operation.
  void Started(uint64_t operation, int64_t now_ns);
  void MovesBy(std::string_view backend);
  // `part` of the operation, 0 to 1; `awaited`: whose data is waited for; -1:
  // nobody's.
  void Moved(double part, int awaited);
  void Ended(const Status& status);

 private:
  friend class Recorder;
  CallRecord(Recorder* recorder, RecordingSlot* slot, uint64_t number)
      : recorder_(recorder), slot_(slot), number_(number) {}

  // Null if another call has it.
  RecordingSlot* slot() const;

  Recorder* recorder_ = nullptr;
  RecordingSlot* slot_ = nullptr;
  uint64_t number_ = 0;
};

// What is known of a call when it is made.
struct CallFacts {
  std::string_view name;
  std::string_view source;  // "train.py:88"; empty if not known
  int32_t set = kWorldSet;
  OpKind kind = OpKind::kAllreduce;
  DType dtype = DType::kUint8;  // of the first tensor
  ReduceOp reduce_op = ReduceOp::kSum;
  DeviceKind device = DeviceKind::kCpu;
  CallerKind caller = CallerKind::kGraph;
  const std::vector<int64_t>* shape = nullptr;  // of the first; null: no tensor
  int32_t tensors = 0;
  int64_t bytes = 0;  // of all
  int64_t step = -1;
};

// Where it lies: in the file that whoever started the rank has handed over, and
// looks into; or else in a folder for the job in `folder`, from where it is
// removed when the rank has left in order; or else in memory without a name.
struct RecordingPlace {
  int descriptor = -1;
  std::string descriptor_job;  // what the job is called by who handed it over
  std::string folder;
};

// Who keeps it; as RecordingHeader has it.
struct RecordingRank {
  int rank = 0;
  int size = 1;
  int launched = 0;
  int part = -1;
  std::string host;
  std::string job;  // if no file was handed over
};

// A copy of what a slot says, for who follows.
struct RecordedCall {
  uint64_t number = 0;
  int64_t submitted_ns = 0;
  int64_t agreed_ns = 0;
  int64_t started_ns = 0;
  int64_t ended_ns = 0;
  int64_t bytes = 0;
  int64_t step = -1;
  int64_t order = 0;
  uint64_t operation = 0;
  int32_t set = kWorldSet;
  int32_t tensors = 0;
  int32_t last = -1;  // the rank that made it last; -1: not known
  OpKind kind = OpKind::kAllreduce;
  DType dtype = DType::kUint8;
  ReduceOp reduce_op = ReduceOp::kSum;
  CallerKind caller = CallerKind::kGraph;
  StatusCode code = StatusCode::kOk;
  std::vector<int64_t> shape;  // its beginning
  std::string backend;
  std::string name;
  std::string source;
};

class Recorder {
 public:
  // What has become of a call.
  enum class Found { kComing, kThere, kGone };

  // Null if no file can be had, `why` says so then: a rank does without.
  static std::unique_ptr<Recorder> Make(const RecordingPlace& place,
                                        const RecordingRank& rank,
                                        std::string* why);
  ~Recorder();

  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  // Any thread. Once no more calls can be made, the first that is made is the
  // last that is written down: a program that goes on must not overwrite what
  // led there.
  CallRecord Add(const CallFacts& facts);

  // What operations do on their way.
  PhaseLog* phases() { return &phases_; }

  // Any thread. How many calls have been made, and the one of a number, which
  // is gone when the ring has come round.
  uint64_t calls() const;
  Found Read(uint64_t number, RecordedCall* call) const;
  // When it ended, 0: not yet, and with which operation it began.
  Found Look(uint64_t number, int64_t* ended_ns, uint64_t* operation) const;

  // Any thread. No more calls can be made, for this reason. The first counts.
  void EndedFor(const std::string& text);
  // Any thread: that reason; empty before.
  std::string ended() const;
  // One thread. This rank leaves the job; `through` as for Runtime::Shutdown.
  void Leaves(const std::string& reason, bool through);
  // It has left. A file in a folder is removed, unless something went wrong;
  // `aborted`: the job had come to a bad end.
  void Left(bool aborted);

 private:
  friend class CallRecord;

  Recorder(OpenFile file, char* memory, bool handed_over, std::string path);
  RecordingHeader* header() const {
    return reinterpret_cast<RecordingHeader*>(memory_);
  }
  void Failed(uint64_t number, const std::string& text);

  OpenFile file_;
  char* const memory_;
  const bool handed_over_;
  const std::string path_;    // of the file in a folder; empty for another one
  mutable std::mutex mutex_;  // held by who writes texts into the header
  std::string ended_;         // guarded by mutex_
  PhaseLog phases_;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_EVENTS_RECORDER_H_
