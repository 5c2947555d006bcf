#include "runtime/events/exposure.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tf_hvd {
namespace {

// Fewer steps than this do not show what is steady.
constexpr int kLearnt = 6;
// The weight of the old mean when a new value arrives.
constexpr double kKept = 7.0 / 8;
// Being equally steady proves nothing.
constexpr double kSteadier = 0.7;
// Names may be new in each step, for example those of a loop's iterations.
constexpr size_t kNames = 10'000;

// The last time that is not after `until_ns`; if all are after it, the first.
int64_t LastUntil(const std::vector<int64_t>& times, int64_t until_ns) {
  constexpr int64_t kNone = std::numeric_limits<int64_t>::min();
  int64_t last = kNone;
  int64_t next = std::numeric_limits<int64_t>::max();
  for (const int64_t ns : times) {
    if (ns <= until_ns) {
      last = std::max(last, ns);
    } else {
      next = std::min(next, ns);
    }
  }
  return last != kNone ? last : next;
}

}  // namespace

void Exposure::Spread::Add(double value) {
  // The first values have equal weight.
  const double kept =
      std::min(kKept, static_cast<double>(count_) / (count_ + 1));
  if (count_ > 0) {
    const double away = std::abs(value - mean_);
    distance_ = count_ == 1 ? away : kept * distance_ + (1 - kept) * away;
  }
  mean_ = kept * mean_ + (1 - kept) * value;
  ++count_;
}

bool Exposure::Waits(const RecordedCall& call, int64_t ended_ns,
                     const RecordedCall& next) {
  if (followers_.size() > kNames) followers_.clear();
  auto& its = followers_[call.name.Get()];
  if (its.size() > kNames) its.clear();
  Follower& follower = its[next.name.Get()];
  follower.call.Add(static_cast<double>(next.submitted_ns - call.submitted_ns));
  follower.end.Add(static_cast<double>(next.submitted_ns - ended_ns));
  // A thread that makes the next call before that end does not wait for it.
  return ended_ns <= next.submitted_ns && follower.call.count() > kLearnt &&
         follower.end.distance() < kSteadier * follower.call.distance();
}

std::vector<Interval> Exposure::Next(const std::vector<RecordedCall>& calls,
                                     int64_t next_ns) {
  std::vector<Interval> exposed;
  std::vector<int64_t> under_way;  // when it ends
  for (size_t i = 0; i < calls.size(); ++i) {
    const RecordedCall& call = calls[i];
    const RecordedCall* const next =
        i + 1 < calls.size() ? &calls[i + 1] : nullptr;
    under_way.push_back(call.ended_ns);
    const int64_t until_ns = next == nullptr ? next_ns : next->submitted_ns;
    int64_t until = 0;
    if (next == nullptr || next->caller == CallerKind::kWaits ||
        call.name.Get() == last_) {
      until = *std::max_element(under_way.begin(), under_way.end());
    }
    if (next != nullptr) {
      const int64_t ended = LastUntil(under_way, until_ns);
      if (Waits(call, ended, *next)) until = std::max(until, ended);
      if (call.caller == CallerKind::kWaits) until = call.ended_ns;
    }
    under_way.erase(
        std::remove_if(under_way.begin(), under_way.end(),
                       [until_ns](int64_t ns) { return ns <= until_ns; }),
        under_way.end());
    until = std::min(until, until_ns);
    if (until > call.submitted_ns) {
      exposed.emplace_back(call.submitted_ns, until);
    }
  }
  if (!calls.empty()) last_ = calls.back().name.Get();
  return exposed;
}

}  // namespace tf_hvd
