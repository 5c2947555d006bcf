// VirtualTime: the clock of a simulated job, and the fibers that run by it.
//
// A rank's runtime is a loop that never blocks, so each rank runs on a separate
// stack, a fiber. Where real code would take time, the time is charged, and
// other fibers run until that time. Everything happens on one thread.
#ifndef TF_HVD_BENCHMARKS_SCALE_VIRTUAL_TIME_H_
#define TF_HVD_BENCHMARKS_SCALE_VIRTUAL_TIME_H_

#include <ucontext.h>

#include <cstddef>
#include <cstdint>
#include <functional>

#include "tests/runtime/protocol/event_queue.h"

namespace tf_hvd::scale {

class VirtualTime;

// Rounds to the clock's unit. A time that is not a number, or is longer than 70
// years, ends the program: some setting is too large.
int64_t WholeNs(double ns);

class Fiber {
 public:
  Fiber(VirtualTime* time, std::function<void()> body);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

 private:
  friend class VirtualTime;
  static void Begin(unsigned int high, unsigned int low);

  VirtualTime* const time_;
  const std::function<void()> body_;
  void* stack_ = nullptr;
  ucontext_t context_;
};

class VirtualTime {
 public:
  VirtualTime();
  ~VirtualTime();

  // The current time: that of the event, plus the time charged since.
  int64_t now() const { return events_.now() + charged_ns_; }

  // A time before now ends the program.
  void At(int64_t time_ns, protocol_test::EventQueue::Action action);
  uint64_t events() const { return events_.count(); }

  // Runs the next event; false at the end.
  bool RunNext() { return events_.RunNext(INT64_MAX); }

  // Continues a suspended fiber; call it only from events.
  void Resume(Fiber* fiber);

  // Delays everything after it by `ns`. Has no effect outside of fibers.
  void Charge(double ns);
  // Lets other fibers catch up with the charged time. Call it before the fiber
  // does anything that others see.
  void Settle();
  // Blocks this fiber until Resume is called for it.
  void Suspend();

  // The instance that the runtime's code reads time from; null: the machine's
  // own clock.
  static VirtualTime* current();

 private:
  protocol_test::EventQueue events_;
  Fiber* running_ = nullptr;
  ucontext_t scheduler_;
  int64_t charged_ns_ = 0;
  double rest_ns_ = 0;  // less than one
};

}  // namespace tf_hvd::scale

#endif  // TF_HVD_BENCHMARKS_SCALE_VIRTUAL_TIME_H_
