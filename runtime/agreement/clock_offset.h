// ClockOffset: the offset that converts times of this rank's clock to rank 0's
// clock. It is measured by messages to the parent in the tree and back; of
// several readings it uses the one with the shortest round trip, as in NTP (RFC
// 5905). Runs only while the offset is needed: here, or below.
//
// Pure: times are passed in. Called only by the holder of the progress lock,
// except where marked.
#ifndef TF_HVD_RUNTIME_AGREEMENT_CLOCK_OFFSET_H_
#define TF_HVD_RUNTIME_AGREEMENT_CLOCK_OFFSET_H_

#include <atomic>
#include <cstdint>
#include <limits>

namespace tf_hvd {

// The content of a question to the parent; the answer fills in the rest.
struct ClockReading {
  int64_t asked_ns = 0;     // send time, by the child's clock
  int64_t answered_ns = 0;  // arrival time, by the parent's clock
  // The parent's own offset and error; a negative error: unknown.
  int64_t offset_ns = 0;
  int64_t error_ns = -1;
};

class ClockOffset {
 public:
  struct Known {
    int64_t offset_ns = 0;
    // Maximum error of the offset; negative: the offset is unknown.
    int64_t error_ns = -1;
  };

  // `top`: this is rank 0. `same_machine`: the parent is on this machine.
  ClockOffset(bool top, bool same_machine);

  // Any thread: turns measuring on or off.
  void Want(bool wanted) { wanted_ = wanted; }
  // Any thread.
  Known known() const;

  // When the next question is due; far in the future if the offset is not
  // needed.
  int64_t due_ns() const;
  // Makes the question to the parent.
  ClockReading Ask(int64_t now_ns);
  // Answers a child's question.
  ClockReading Answer(const ClockReading& question, int64_t now_ns);
  void Take(const ClockReading& answer, int64_t now_ns);

 private:
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  static constexpr int64_t kLongAgo = std::numeric_limits<int64_t>::min() / 2;

  const bool top_;
  const bool same_machine_;
  std::atomic<bool> wanted_{false};
  std::atomic<int64_t> offset_ns_{0};
  std::atomic<int64_t> error_ns_;
  int64_t read_ns_ = 0;  // when the offset was measured
  int64_t asked_ns_ = kLongAgo;
  int readings_ = 0;
  int64_t wanted_below_until_ns_ = kLongAgo;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_AGREEMENT_CLOCK_OFFSET_H_
