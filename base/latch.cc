#include "base/latch.h"

#include <cerrno>
#include <ctime>

#include "base/clock.h"

namespace tf_hvd {

Latch::Latch() {
  pthread_condattr_t attributes;
  pthread_condattr_init(&attributes);
  // The clock of NowNs (std::chrono::steady_clock).
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_cond_init(&changed_, &attributes);
  pthread_condattr_destroy(&attributes);
}

Latch::~Latch() { pthread_cond_destroy(&changed_); }

void Latch::Set() {
  const MutexLock lock(&mutex_);
  set_ = true;
  pthread_cond_broadcast(&changed_);
}

bool Latch::WaitFor(int64_t ns) {
  const int64_t until_ns = NowNs() + ns;
  timespec until{};
  until.tv_sec = static_cast<time_t>(until_ns / kSecond);
  until.tv_nsec = static_cast<long>(until_ns % kSecond);  // NOLINT
  MutexLock lock(&mutex_);
  pthread_mutex_t* const mutex = lock.native().mutex()->native_handle();
  while (!set_ &&
         pthread_cond_timedwait(&changed_, mutex, &until) != ETIMEDOUT) {
  }
  return set_;
}

}  // namespace tf_hvd
