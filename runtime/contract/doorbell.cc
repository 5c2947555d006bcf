#include "runtime/contract/doorbell.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <climits>

#include "base/clock.h"
#include "base/counters.h"

namespace tf_hvd {
namespace {

// Without FUTEX_PRIVATE_FLAG: the word may be in memory shared by processes.
long Futex(std::atomic<uint32_t>* word, int operation, uint32_t value,
           const timespec* limit) {
  Count(Counted::kSystemCalls);
  return syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), operation, value,
                 limit, nullptr, 0);
}

constexpr uint32_t kAsleep = 1;

}  // namespace

// Ranks that wait read each other's bells: the line stays in all of their
// caches until it is written.
void Doorbell::SetAsleep(bool asleep) {
  const uint32_t wanted = asleep ? kAsleep : 0;
  if (asleep_ == wanted) return;
  Count(Counted::kLinesWritten);
  asleep_ = wanted;
}

void Doorbell::RingIfAsleep() {
  // An exchange, so that only one of several senders makes the wake-up call.
  // Reads first, because usually no rank sleeps.
  if (asleep_ == kAsleep && asleep_.exchange(0) == kAsleep) Ring();
}

void Doorbell::Ring() {
  bell_ = 1;
  Count(Counted::kLinesWritten);
  Futex(&bell_, FUTEX_WAKE, INT_MAX, nullptr);
}

bool Doorbell::Wait(int64_t limit_ns) {
  const int64_t start_ns = NowNs();
  int64_t left_ns = limit_ns;
  while (bell_.exchange(0) == 0) {
    if (left_ns <= 0) return false;
    const timespec limit = {static_cast<time_t>(left_ns / kSecond),
                            static_cast<long>(left_ns % kSecond)};
    // Returns immediately if the bell was rung meanwhile. A signal or a
    // spurious wake-up causes another round.
    if (Futex(&bell_, FUTEX_WAIT, 0, &limit) != 0 && errno == ETIMEDOUT) {
      left_ns = 0;
    } else {
      left_ns = limit_ns - (NowNs() - start_ns);
    }
  }
  return true;
}

}  // namespace tf_hvd
