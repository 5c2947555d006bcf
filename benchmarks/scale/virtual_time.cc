#include "benchmarks/scale/virtual_time.h"

#include <sys/mman.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace tf_hvd::scale {
namespace {

constexpr size_t kStackBytes = size_t{128} << 10;
// The order of a fiber's actions within such a short time does not matter.
constexpr int64_t kQuantumNs = 200;

// Small enough that sums of some such times do not overflow.
constexpr int64_t kEndNs = int64_t{1} << 61;

VirtualTime* the_time = nullptr;

}  // namespace

int64_t WholeNs(double ns) {
  if (!(std::abs(ns) < static_cast<double>(kEndNs))) {
    std::fprintf(stderr, "invalid duration: %g ns\n", ns);
    std::exit(1);
  }
  return static_cast<int64_t>(ns);
}

Fiber::Fiber(VirtualTime* time, std::function<void()> body)
    : time_(time), body_(std::move(body)) {
  stack_ = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (stack_ == MAP_FAILED) {
    std::perror("the stack of a rank");
    std::exit(1);
  }
  getcontext(&context_);
  context_.uc_stack.ss_sp = stack_;
  context_.uc_stack.ss_size = kStackBytes;
  context_.uc_link = nullptr;
  // makecontext passes only integers.
  const auto self = reinterpret_cast<uintptr_t>(this);
  makecontext(&context_, reinterpret_cast<void (*)()>(&Fiber::Begin), 2,
              static_cast<unsigned int>(self >> 32),
              static_cast<unsigned int>(self));
}

Fiber::~Fiber() { munmap(stack_, kStackBytes); }

void Fiber::Begin(unsigned int high, unsigned int low) {
  auto* const self =
      reinterpret_cast<Fiber*>((static_cast<uintptr_t>(high) << 32) | low);
  self->body_();
  self->time_->Suspend();  // never resumed
}

VirtualTime::VirtualTime() { the_time = this; }

VirtualTime::~VirtualTime() { the_time = nullptr; }

VirtualTime* VirtualTime::current() { return the_time; }

void VirtualTime::At(int64_t time_ns,
                     protocol_test::EventQueue::Action action) {
  if (time_ns < events_.now() || time_ns > kEndNs) {
    std::fprintf(stderr, "at %lld ns an event has an invalid time, %lld ns\n",
                 static_cast<long long>(events_.now()),
                 static_cast<long long>(time_ns));
    std::exit(1);
  }
  events_.At(time_ns, std::move(action));
}

void VirtualTime::Resume(Fiber* fiber) {
  running_ = fiber;
  swapcontext(&scheduler_, &fiber->context_);
  running_ = nullptr;
  charged_ns_ = 0;
}

void VirtualTime::Charge(double ns) {
  if (running_ == nullptr) return;
  rest_ns_ += ns;
  const auto whole = WholeNs(rest_ns_);
  rest_ns_ -= static_cast<double>(whole);
  charged_ns_ += whole;
  if (charged_ns_ >= kQuantumNs) Settle();
}

void VirtualTime::Settle() {
  if (running_ == nullptr || charged_ns_ == 0) return;
  Fiber* const self = running_;
  At(now(), [this, self] { Resume(self); });
  Suspend();
}

void VirtualTime::Suspend() {
  Fiber* const self = running_;
  swapcontext(&self->context_, &scheduler_);
}

}  // namespace tf_hvd::scale
