// ClockOffset: what is to be added to times of this rank's clock for those of
// rank 0's, found by messages to the parent in the tree and back: of several
// readings the one whose message took the shortest, as in NTP (RFC 5905). Only
// while somebody wants to know: here, or below.
//
// Pure: times are handed in. Holder of the progress lock only, but for what is
// marked.
#ifndef TF_HVD_RUNTIME_AGREEMENT_CLOCK_OFFSET_H_
#define TF_HVD_RUNTIME_AGREEMENT_CLOCK_OFFSET_H_

#include <atomic>
#include <cstdint>
#include <limits>

namespace tf_hvd {

// What goes to the parent, and comes back with the rest.
struct ClockReading {
  int64_t asked_ns = 0;     // when it was sent, by the child's clock
  int64_t answered_ns = 0;  // when the parent had it, by its clock
  // What the parent knows of its own; the error negative: nothing.
  int64_t offset_ns = 0;
  int64_t error_ns = -1;
};

class ClockOffset {
 public:
  struct Known {
    int64_t offset_ns = 0;
    // By how much it may be wrong; negative: it is not known.
    int64_t error_ns = -1;
  };

  // `top`: it is rank 0. `same_machine`: as the parent.
  ClockOffset(bool top, bool same_machine);

  // Any thread: whether the offset is to be known, until further notice.
  void Want(bool wanted) { wanted_ = wanted; }
  // Any thread.
  Known known() const;

  // When the parent is to be asked next; far away if nobody wants to know.
  int64_t due_ns() const;
  // The question to the parent.
  ClockReading Ask(int64_t now_ns);
  // The answer to a child's.
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
  int64_t read_ns_ = 0;  // when that was found
  int64_t asked_ns_ = kLongAgo;
  int readings_ = 0;
  int64_t wanted_below_until_ns_ = kLongAgo;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_AGREEMENT_CLOCK_OFFSET_H_
