// Latch: what one thread sets and others wait for, for a limited time by the
// steady clock. std::condition_variable::wait_for would do, but below glibc
// 2.30, for which --portable builds, it waits by the system's clock, which can
// be set.
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
  // Nobody waits any more.
  ~Latch();

  Latch(const Latch&) = delete;
  Latch& operator=(const Latch&) = delete;

  // For good. Wakes all that wait.
  void Set();

  // Returns when it is set, or after `ns` nanoseconds. True if it is set.
  bool WaitFor(int64_t ns);

 private:
  Mutex mutex_;
  pthread_cond_t changed_;
  bool set_ GUARDED_BY(mutex_) = false;
};

}  // namespace tf_hvd

#endif  // TF_HVD_BASE_LATCH_H_
