// EventQueue: the virtual clock, in integer nanoseconds. Events of the same
// instant run in the order in which they were added, which keeps an edge
// first-in-first-out.
#ifndef TF_HVD_TESTS_RUNTIME_PROTOCOL_EVENT_QUEUE_H_
#define TF_HVD_TESTS_RUNTIME_PROTOCOL_EVENT_QUEUE_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <tuple>
#include <utility>
#include <vector>

#include "base/clock.h"

namespace tf_hvd::protocol_test {

class EventQueue {
 public:
  using Action = std::function<void()>;

  int64_t now() const { return now_; }
  uint64_t count() const { return count_; }  // added in total

  void After(int64_t delay_ns, Action action) {
    At(now_ + delay_ns, std::move(action));
  }
  void At(int64_t time_ns, Action action) {
    events_.push_back({time_ns, count_++, std::move(action)});
    std::push_heap(events_.begin(), events_.end(), Later);
  }

  // Runs the next event; false if there is none up to `limit_ns`.
  bool RunNext(int64_t limit_ns) {
    if (events_.empty() || events_.front().time_ns > limit_ns) return false;
    std::pop_heap(events_.begin(), events_.end(), Later);
    const Event event = std::move(events_.back());
    events_.pop_back();
    now_ = event.time_ns;
    event.action();
    return true;
  }

 private:
  struct Event {
    int64_t time_ns;
    uint64_t number;
    Action action;
  };

  static bool Later(const Event& a, const Event& b) {
    return std::tie(a.time_ns, a.number) > std::tie(b.time_ns, b.number);
  }

  int64_t now_ = 0;
  uint64_t count_ = 0;
  std::vector<Event> events_;
};

}  // namespace tf_hvd::protocol_test

#endif  // TF_HVD_TESTS_RUNTIME_PROTOCOL_EVENT_QUEUE_H_
