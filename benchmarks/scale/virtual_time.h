// VirtualTime: the clock of a simulated job, and the fibers that live by it.
//
// A rank's runtime is a loop that waits for nothing, so each runs on a stack of
// its own, a fiber: where real code would take time, it is charged, and others
// go on until that time has come. Everything happens on one thread.
#ifndef TF_HVD_BENCHMARKS_SCALE_VIRTUAL_TIME_H_
#define TF_HVD_BENCHMARKS_SCALE_VIRTUAL_TIME_H_

#include <ucontext.h>

#include <cstddef>
#include <cstdint>
#include <functional>

#include "tests/runtime/protocol/event_queue.h"

namespace tf_hvd::scale {

class VirtualTime;

// As the clock has it. A time that is no number, or longer than 70 years, ends
// the program: some setting is too large.
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

  // Of what runs: that of the event, and what it was charged since.
  int64_t now() const { return events_.now() + charged_ns_; }

  // Not before now: that ends the program.
  void At(int64_t time_ns, protocol_test::EventQueue::Action action);
  uint64_t events() const { return events_.count(); }

  // Runs what comes next; false at the end.
  bool RunNext() { return events_.RunNext(INT64_MAX); }

  // Goes on with a fiber that is suspended; from events only.
  void Resume(Fiber* fiber);

  // What follows happens so much later. Outside of fibers it costs nothing.
  void Charge(double ns);
  // Others catch up with what was charged: to be called before the fiber does
  // what others see.
  void Settle();
  // Until somebody resumes this fiber.
  void Suspend();

  // The one that time is asked of by the code of the runtime; null: none, and
  // the machine's own clock counts.
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
