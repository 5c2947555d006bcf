// FdGuard: detects a script that closes file descriptors which it has not
// opened (os.closerange), including those of tf_hvd and MPI. The launcher may
// end the process within a millisecond, so the report is immediate.
#ifndef TF_HVD_RUNTIME_TRANSPORT_SEGMENT_FD_GUARD_H_
#define TF_HVD_RUNTIME_TRANSPORT_SEGMENT_FD_GUARD_H_

#include <functional>
#include <memory>
#include <thread>

#include "base/mutex.h"
#include "base/open_file.h"

namespace tf_hvd {

class FdGuard {
 public:
  // `on_cut` is called at most once, on a separate thread, and must not destroy
  // this object. A few seconds later the process exits with status 1. Cannot
  // detect anything while a forked child exists that has not closed its copy.
  explicit FdGuard(std::function<void()> on_cut);
  ~FdGuard();

  FdGuard(const FdGuard&) = delete;
  FdGuard& operator=(const FdGuard&) = delete;

 private:
  // Outlives this object if the thread does.
  struct Alarm {
    Mutex mutex;
    std::function<void()> on_cut GUARDED_BY(mutex);
  };

  const std::shared_ptr<Alarm> alarm_;
  OpenFile read_;
  OpenFile write_;
  std::thread thread_;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_SEGMENT_FD_GUARD_H_
