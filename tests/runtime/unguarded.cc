// An access without the lock. `./dev lint` fails unless the analysis reports
// it. Bazel does not build this file.
#include "base/mutex.h"

namespace tf_hvd {

class Unguarded {
 public:
  int Next() { return ++count_; }

 private:
  Mutex mutex_;
  int count_ GUARDED_BY(mutex_) = 0;
};

int FirstOf(Unguarded* unguarded) { return unguarded->Next(); }

}  // namespace tf_hvd
