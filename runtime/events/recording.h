// Recording: the layout of a flight recorder's file. A header, then a ring of
// slots, one for each of the last calls. Little-endian, as all supported
// machines. tf_hvd/observe/recording.py repeats the same layout, member for
// member (tests/observe/recording_layout_test.py compares them). It also reads
// the file while it is being written, and after the writer was killed.
//
// All members in the file are atomics, because other threads and processes read
// them. Readers get copies of slots, with plain values.
#ifndef TF_HVD_RUNTIME_EVENTS_RECORDING_H_
#define TF_HVD_RUNTIME_EVENTS_RECORDING_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

#include "base/status.h"
#include "base/types.h"

namespace tf_hvd {

template <typename T>
using Plain = T;

// A text of a fixed length, which ends at its first zero byte. If it is too
// long its middle is dropped, because names differ at their ends.
template <size_t kBytes, template <typename> class Of = std::atomic>
class RecordedText {
 public:
  static_assert(kBytes % sizeof(uint64_t) == 0);

  // One thread at a time.
  void Set(std::string_view text) {
    std::array<uint64_t, kBytes / sizeof(uint64_t)> words{};
    auto* const bytes = reinterpret_cast<char*>(words.data());
    size_t length = text.size();
    if (length < kBytes) {
      text.copy(bytes, length);
    } else {
      constexpr size_t kHead = (kBytes - 4) / 2;
      constexpr size_t kTail = kBytes - 4 - kHead;
      length = kBytes - 1;
      std::memcpy(bytes, text.data(), kHead);
      std::memcpy(bytes + kHead, "...", 3);
      std::memcpy(bytes + kHead + 3, text.data() + text.size() - kTail, kTail);
    }
    // Bytes after the zero byte may remain.
    for (size_t i = 0; i <= length / sizeof(uint64_t); ++i) {
      Store(words[i], &words_[i]);
    }
  }

  // Only for a copy.
  std::string Get() const {
    static_assert(std::is_same_v<Of<uint64_t>, uint64_t>);
    const auto* const bytes = reinterpret_cast<const char*>(words_.data());
    return std::string(bytes, strnlen(bytes, kBytes));
  }

 private:
  static void Store(uint64_t word, std::atomic<uint64_t>* to) {
    to->store(word, std::memory_order_relaxed);
  }
  static void Store(uint64_t word, uint64_t* to) { *to = word; }

  std::array<Of<uint64_t>, kBytes / sizeof(uint64_t)> words_;
};

// The kind of caller.
enum class CallerKind : uint8_t {
  kGraph = 0,     // a step of TensorFlow
  kCompiled = 1,  // a step compiled by XLA
  kWaits = 2,     // a thread that waits for the call's end, as in an eager call
};

// A call. Times are NowNs's; 0: not yet.
template <template <typename> class Of>
struct CallLayout {
  // The number of the call among this rank's, from 1; 0: empty, or being
  // filled.
  Of<uint64_t> number;
  Of<int64_t> submitted_ns;  // submitted on this rank
  Of<int64_t> agreed_ns;     // ordered: all ranks have submitted it
  Of<int64_t> started_ns;    // its operation has started
  Of<int64_t> ended_ns;      // its caller was notified
  Of<int64_t> bytes;         // of its tensors on this rank
  Of<double> part;   // fraction of the operation done on this rank: 0 to 1
  Of<int64_t> step;  // of the caller; -1: none
  // Its position in the order of its set, from 1, the same on all ranks; 0:
  // none.
  Of<int64_t> order;
  // From 1. Calls with the same number were fused; the first of them has `part`
  // and `awaited`.
  Of<uint64_t> operation;
  Of<int32_t> set;
  Of<int32_t> tensors;
  Of<int32_t> awaited;  // the rank that data was needed from, plus 1; 0: none
  Of<int32_t> dimensions;  // of the first tensor; `shape` has as many as fit
  Of<OpKind> kind;
  Of<DType> dtype;  // of the first tensor
  Of<ReduceOp> reduce_op;
  Of<DeviceKind> device;
  Of<CallerKind> caller;
  Of<StatusCode> code;  // of the outcome
  Of<uint16_t> last;    // the last rank to make the call, plus 1; 0: unknown
  std::array<Of<int64_t>, 4> shape;
  RecordedText<8, Of> backend;  // name of the backend; empty: no data moves
  RecordedText<104, Of> name;
  RecordedText<72, Of> source;  // "train.py:88", the program's line
};
using RecordingSlot = CallLayout<std::atomic>;
using RecordedCall = CallLayout<Plain>;
static_assert(sizeof(RecordingSlot) == 320);
static_assert(sizeof(RecordedCall) == sizeof(RecordingSlot));
static_assert(std::is_trivially_copyable_v<RecordedCall>);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

enum class RankState : uint32_t {
  kNone = 0,     // the file has not been used yet
  kJoined = 1,   // in the job
  kThrough = 2,  // has left after making all of its calls
  kFailed = 3,   // has left for another reason
};

struct RecordingHeader {
  static constexpr char kMagic[9] = "tfhvdrec";
  static constexpr uint32_t kVersion = 1;

  std::atomic<uint64_t> magic;
  std::atomic<uint32_t> version;
  std::atomic<uint32_t> header_bytes;
  std::atomic<uint32_t> slot_bytes;
  std::atomic<uint32_t> capacity;
  std::atomic<uint64_t> calls;  // number of calls of this rank
  std::atomic<int32_t> rank;
  std::atomic<int32_t> size;
  std::atomic<int32_t> process;
  std::atomic<uint32_t> state;    // RankState
  std::atomic<int32_t> launched;  // the launcher's number of this rank
  // If the launcher's ranks form several jobs, as with init(comm=...), this
  // job's first rank by the launcher's count; -1: the job has all ranks.
  std::atomic<int32_t> part;
  // One moment by both clocks, in nanoseconds: the realtime clock's and
  // NowNs's.
  std::atomic<int64_t> realtime_ns;
  std::atomic<int64_t> steady_ns;
  std::atomic<int64_t> left_ns;  // as NowNs; 0: it has not left
  RecordedText<64> host;
  // The job's name, the same on all ranks, if it has one.
  RecordedText<128> job;
  RecordedText<512> reason;  // why it has left
  RecordedText<1024> ended;  // why no more calls are accepted, if known
  std::atomic<int64_t> ended_told_ns;  // when that became known
  // The first call that failed for this reason; 0: none.
  std::atomic<uint64_t> lost_call;
  // The last call that failed for another reason.
  std::atomic<uint64_t> failed_call;
  RecordedText<1024> failed;  // the error of that call
};
static_assert(sizeof(RecordingHeader) == 2856);

inline constexpr size_t kRecordingHeaderBytes = 4096;
inline constexpr size_t kRecordedCalls = 2000;
inline constexpr size_t kRecordingBytes =
    kRecordingHeaderBytes + kRecordedCalls * sizeof(RecordingSlot);

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_EVENTS_RECORDING_H_
