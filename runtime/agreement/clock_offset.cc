#include "runtime/agreement/clock_offset.h"

#include <algorithm>
#include <cstdlib>

#include "base/clock.h"

namespace tf_hvd {
namespace {

// A few readings in a row at first, then one every second.
constexpr int kFirst = 10;
constexpr int64_t kFirstEveryNs = 2 * kMs;
constexpr int64_t kEveryNs = kSecond;
// An answer may be lost if a rank dies; a child's need ends when its questions
// stop.
constexpr int64_t kForgetNs = 5 * kSecond;
// Two machines' clocks drift apart by less than 50 us per second: RFC 5905
// allows each of them 15.
constexpr int64_t kPerDriftNs = 20'000;

}  // namespace

ClockOffset::ClockOffset(bool top, bool same_machine)
    : top_(top), same_machine_(same_machine), error_ns_(top ? 0 : -1) {}

ClockOffset::Known ClockOffset::known() const {
  // The error is written last and read first.
  const int64_t error_ns = error_ns_.load(std::memory_order_acquire);
  return {offset_ns_.load(std::memory_order_relaxed), error_ns};
}

int64_t ClockOffset::due_ns() const {
  if (top_) return kNever;
  const bool wanted = wanted_ || asked_ns_ < wanted_below_until_ns_;
  if (!wanted) return kNever;
  return asked_ns_ + (readings_ < kFirst ? kFirstEveryNs : kEveryNs);
}

ClockReading ClockOffset::Ask(int64_t now_ns) {
  asked_ns_ = now_ns;
  ClockReading question;
  question.asked_ns = now_ns;
  return question;
}

ClockReading ClockOffset::Answer(const ClockReading& question, int64_t now_ns) {
  wanted_below_until_ns_ = now_ns + kForgetNs;
  ClockReading answer = question;
  answer.answered_ns = now_ns;
  answer.offset_ns = offset_ns_;
  answer.error_ns = error_ns_;
  return answer;
}

void ClockOffset::Take(const ClockReading& answer, int64_t now_ns) {
  if (answer.error_ns < 0) return;  // the parent does not know its offset yet
  ++readings_;
  const int64_t round_trip_ns = now_ns - answer.asked_ns;
  int64_t to_parent_ns =
      answer.answered_ns - (answer.asked_ns + round_trip_ns / 2);
  int64_t error_ns = round_trip_ns / 2;
  // It is the same clock, unless containers have different ones.
  if (same_machine_ && std::abs(to_parent_ns) <= error_ns) {
    to_parent_ns = error_ns = 0;
  }
  error_ns += answer.error_ns;
  const int64_t before_ns = error_ns_ + (now_ns - read_ns_) / kPerDriftNs;
  const bool worse = error_ns_ >= 0 && error_ns > before_ns;
  read_ns_ = now_ns;
  if (worse) {
    error_ns_.store(before_ns, std::memory_order_release);
    return;
  }
  offset_ns_.store(to_parent_ns + answer.offset_ns, std::memory_order_relaxed);
  error_ns_.store(error_ns, std::memory_order_release);
}

}  // namespace tf_hvd
