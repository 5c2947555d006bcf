// FdGuard: notices that the script closes file descriptors that it has not
// opened (os.closerange), tf_hvd's and MPI's among them. The launcher may end
// the process for that within a millisecond: the notice comes at once.
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
  // `on_cut` is called at most once, on a thread of its own, and must not
  // destroy this; some seconds after it the process ends, with status 1. Blind
  // while a forked child lives that has not closed its copy.
  explicit FdGuard(std::function<void()> on_cut);
  ~FdGuard();

  FdGuard(const FdGuard&) = delete;
  FdGuard& operator=(const FdGuard&) = delete;

 private:
  // Outlives this where the thread does.
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
