// Recorder: a rank's flight recorder, always on. The rank's last calls are in a
// mapped file, which other processes can read at any time, even after the
// process was killed. No dump is necessary.
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

// The place of the recording: the file that the launcher handed over and reads;
// or else a file in a folder for the job in `folder`, removed when the rank
// leaves normally; or else anonymous memory.
struct RecordingPlace {
  int descriptor = -1;
  std::string descriptor_job;  // the job's name from the process that handed
                               // the file over
  std::string folder;
};

// The recording rank, as in RecordingHeader.
struct RecordingRank {
  int rank = 0;
  int size = 1;
  int launched = 0;
  int part = -1;
  std::string host;
  std::string job;  // if no file was handed over
};

// Updates of a call are ignored once the ring has wrapped around and another
// call uses the slot.
class Recorder final : private CallLog {
 public:
  // The state of a call in the ring: not written yet, available, overwritten.
  enum class Found { kComing, kThere, kGone };

  // Null if no file can be created; `why` is the reason. The rank then runs
  // without a recorder.
  static std::unique_ptr<Recorder> Make(const RecordingPlace& place,
                                        const RecordingRank& rank,
                                        std::string* why);
  ~Recorder();

  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  // Any thread. Once no more calls are accepted, the first further call is the
  // last one recorded: a program that continues must not overwrite the calls
  // that led to the failure.
  CallRecord Add(const Entry& entry);

  // The phases of operations.
  PhaseLog* phases() { return &phases_; }

  // Any thread. The number of calls so far, and the call with a number. If the
  // ring has wrapped around, that call is lost and `call` is undefined.
  uint64_t calls() const;
  Found Read(uint64_t number, RecordedCall* call) const;
  // When the call ended (0: not yet), and the operation that it started with.
  Found Look(uint64_t number, int64_t* ended_ns, uint64_t* operation) const;

  // Any thread. No more calls are accepted, for this reason. Only the first
  // call has an effect.
  void EndedFor(const std::string& text);
  // Any thread: that reason; empty if calls are still accepted.
  std::string ended() const;
  // One thread. This rank leaves the job; `through` as for Runtime::Shutdown.
  void Leaves(const std::string& reason, bool through);
  // The rank has left. Removes a file in a folder, unless something failed;
  // `aborted`: the job was aborted.
  void Left(bool aborted);

 private:
  Recorder(OpenFile file, char* memory, bool handed_over, std::string path);

  void Agreed(uint64_t call, int64_t order, int last, int64_t now_ns) override;
  void Started(uint64_t call, uint64_t operation, int64_t now_ns) override;
  void MovesBy(uint64_t call, std::string_view backend) override;
  void Moved(uint64_t call, double part, int awaited) override;
  void Ended(uint64_t call, const Status& status) override;

  // The slot of that call; null if it has been reused.
  RecordingSlot* SlotOf(uint64_t call) const;
  RecordingHeader* header() const {
    return reinterpret_cast<RecordingHeader*>(memory_);
  }
  void Failed(uint64_t call, const std::string& text);

  OpenFile file_;
  char* const memory_;
  const bool handed_over_;
  const std::string path_;  // of a file in a folder; otherwise empty
  mutable Mutex mutex_;     // held while texts are written into the header
  std::string ended_ GUARDED_BY(mutex_);
  PhaseLog phases_;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_EVENTS_RECORDER_H_
