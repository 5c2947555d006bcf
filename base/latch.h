// Latch: set once by one thread; others wait for it with a time-out by the
// steady clock. std::condition_variable::wait_for would do, but with glibc
// before 2.30, which --portable builds for, it uses the system clock, which can
// be changed.
//
// Any thread.
#ifndef TF_HVD_BASE_LATCH_H_
#define TF_HVD_BASE_LATCH_H_

#include <pthread.h>

#include <cstdint>

#include "base/mutex.h"

namespace tf_hvd {

class Latch {
 public:
  Latch();
  // No thread may be waiting.
  ~Latch();

  Latch(const Latch&) = delete;
  Latch& operator=(const Latch&) = delete;

  // Permanently. Wakes all waiting threads.
  void Set();

  // Returns when the latch is set, or after `ns` nanoseconds. True if it is
  // set.
  bool WaitFor(int64_t ns);

 private:
  Mutex mutex_;
  pthread_cond_t changed_;
  bool set_ GUARDED_BY(mutex_) = false;
};

}  // namespace tf_hvd

#endif  // TF_HVD_BASE_LATCH_H_
