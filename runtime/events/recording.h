// Recording: how a flight recorder's file is laid out. A header, then a ring of
// slots, one for each of the last calls. Little-endian, as the machines are.
// tf_hvd/observe/recording.py has the same layout once more, member for member
// (tests/observe/recording_layout_test.py compares them), and reads the file
// also while it is being written and after whoever wrote it was killed.
//
// In the file all of it are atomics, since other threads and processes look on.
// Whoever follows has a slot's copy, of plain values.
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

// A text of a fixed length, which ends at its first zero byte. One that is too
// long loses its middle: names differ at their ends.
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
    // What comes after the zero byte may stay.
    for (size_t i = 0; i <= length / sizeof(uint64_t); ++i) {
      Store(words[i], &words_[i]);
    }
  }

  // Of a copy.
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

// What makes a call.
enum class CallerKind : uint8_t {
  kGraph = 0,     // a step of TensorFlow's
  kCompiled = 1,  // one that XLA has compiled
  kWaits = 2,     // a thread that waits for its end, as that of an eager call
};

// A call. Times are NowNs's; 0: it has not come so far.
template <template <typename> class Of>
struct CallLayout {
  // Of the call among this rank's, from 1; 0: empty, or being filled.
  Of<uint64_t> number;
  Of<int64_t> submitted_ns;  // it was handed in here
  Of<int64_t> agreed_ns;     // it was put in order: all ranks have it
  Of<int64_t> started_ns;    // its operation was begun
  Of<int64_t> ended_ns;      // its caller was told
  Of<int64_t> bytes;         // of its tensors on this rank
  Of<double> part;           // of the operation, that is done here: 0 to 1
  Of<int64_t> step;          // of the caller; -1: none
  // Its place in the order of its set, from 1, the same on all ranks; 0: none.
  Of<int64_t> order;
  // From 1. Calls with the same number were fused, and the first of them has
  // `part` and `awaited`.
  Of<uint64_t> operation;
  Of<int32_t> set;
  Of<int32_t> tensors;
  Of<int32_t> awaited;     // whose data was waited for, plus 1; 0: nobody
  Of<int32_t> dimensions;  // of the first tensor; `shape` has as many as it has
                           // room for
  Of<OpKind> kind;
  Of<DType> dtype;  // of the first tensor
  Of<ReduceOp> reduce_op;
  Of<DeviceKind> device;
  Of<CallerKind> caller;
  Of<StatusCode> code;  // that it ended with
  Of<uint16_t> last;    // the rank that made it last, plus 1; 0: not known
  std::array<Of<int64_t>, 4> shape;
  RecordedText<8, Of> backend;  // how its data moves; empty: it moves none
  RecordedText<104, Of> name;
  RecordedText<72, Of> source;  // "train.py:88", where the program makes it
};
using RecordingSlot = CallLayout<std::atomic>;
using RecordedCall = CallLayout<Plain>;
static_assert(sizeof(RecordingSlot) == 320);
static_assert(sizeof(RecordedCall) == sizeof(RecordingSlot));
static_assert(std::is_trivially_copyable_v<RecordedCall>);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

enum class RankState : uint32_t {
  kNone = 0,     // nobody has used the file yet
  kJoined = 1,   // in the job
  kThrough = 2,  // has left it: it had made all its calls
  kFailed = 3,   // has left it for another reason
};

struct RecordingHeader {
  static constexpr char kMagic[9] = "tfhvdrec";
  static constexpr uint32_t kVersion = 1;

  std::atomic<uint64_t> magic;
  std::atomic<uint32_t> version;
  std::atomic<uint32_t> header_bytes;
  std::atomic<uint32_t> slot_bytes;
  std::atomic<uint32_t> capacity;
  std::atomic<uint64_t> calls;  // that this rank has made
  std::atomic<int32_t> rank;
  std::atomic<int32_t> size;
  std::atomic<int32_t> process;
  std::atomic<uint32_t> state;    // RankState
  std::atomic<int32_t> launched;  // the launcher's number of the rank
  // Of several jobs of some ranks each, as init(comm=...) makes them, the first
  // rank by the launcher's count; -1: the job has all ranks.
  std::atomic<int32_t> part;
  // One moment by both clocks, nanoseconds: the realtime clock's and NowNs's.
  std::atomic<int64_t> realtime_ns;
  std::atomic<int64_t> steady_ns;
  std::atomic<int64_t> left_ns;  // NowNs's; 0: it has not left
  RecordedText<64> host;
  RecordedText<128> job;     // the same on all ranks, where one can be told
  RecordedText<512> reason;  // why it has left
  RecordedText<1024> ended;  // why no more calls can be made, if it was told
  std::atomic<int64_t> ended_told_ns;  // and when
  std::atomic<uint64_t> lost_call;    // the first that failed for that; 0: none
  std::atomic<uint64_t> failed_call;  // the last that failed otherwise
  RecordedText<1024> failed;          // and with what
};
static_assert(sizeof(RecordingHeader) == 2856);

inline constexpr size_t kRecordingHeaderBytes = 4096;
inline constexpr size_t kRecordedCalls = 2000;
inline constexpr size_t kRecordingBytes =
    kRecordingHeaderBytes + kRecordedCalls * sizeof(RecordingSlot);

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_EVENTS_RECORDING_H_
