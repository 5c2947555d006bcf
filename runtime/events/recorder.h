// Recorder: a rank's flight recorder, always on. The last calls of the rank lie
// in a file that is mapped, so that they can be read from outside at any time,
// and after the process was killed: nothing has to be dumped.
#ifndef TF_HVD_RUNTIME_EVENTS_RECORDER_H_
#define TF_HVD_RUNTIME_EVENTS_RECORDER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/mutex.h"
#include "base/open_file.h"
#include "base/status.h"
#include "runtime/events/phases.h"
#include "runtime/events/recording.h"
#include "runtime/request/call_record.h"
#include "runtime/request/entry.h"

namespace tf_hvd {

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

// Of a call it forgets what is said once the ring has come round and another
// call has the slot.
class Recorder final : private CallLog {
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
  CallRecord Add(const Entry& entry);

  // What operations do on their way.
  PhaseLog* phases() { return &phases_; }

  // Any thread. How many calls have been made, and the one of a number, which
  // is gone when the ring has come round: then `call` means nothing.
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
  Recorder(OpenFile file, char* memory, bool handed_over, std::string path);

  void Agreed(uint64_t call, int64_t order, int last, int64_t now_ns) override;
  void Started(uint64_t call, uint64_t operation, int64_t now_ns) override;
  void MovesBy(uint64_t call, std::string_view backend) override;
  void Moved(uint64_t call, double part, int awaited) override;
  void Ended(uint64_t call, const Status& status) override;

  // Of that call; null if another one has it.
  RecordingSlot* SlotOf(uint64_t call) const;
  RecordingHeader* header() const {
    return reinterpret_cast<RecordingHeader*>(memory_);
  }
  void Failed(uint64_t call, const std::string& text);

  OpenFile file_;
  char* const memory_;
  const bool handed_over_;
  const std::string path_;  // of the file in a folder; empty for another one
  mutable Mutex mutex_;     // held by who writes texts into the header
  std::string ended_ GUARDED_BY(mutex_);
  PhaseLog phases_;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_EVENTS_RECORDER_H_
