// TensorQueue: requests submitted by TensorFlow's threads and not yet read by
// the cycle (stage 4). Unbounded: a kernel must not block.
#ifndef TF_HVD_RUNTIME_REQUEST_TENSOR_QUEUE_H_
#define TF_HVD_RUNTIME_REQUEST_TENSOR_QUEUE_H_

#include <atomic>
#include <cstddef>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "runtime/request/entry.h"

namespace tf_hvd {

class TensorQueue {
 public:
  // Any thread.
  void Push(Entry entry);

  // Holder of the progress lock: removes and returns everything, in the order
  // of submission.
  std::vector<Entry> Drain();

  // Any thread. False between the return of Push and the next Drain.
  bool Empty() const { return size_ == 0; }

  // Any thread. XLA has started to compile a step. The end of the compilation
  // is not visible, so the next Push ends it.
  void NoteCompilation(const std::string& step);
  // Any thread. The step being compiled; empty: none.
  std::string compiling() const;

 private:
  mutable Mutex mutex_;
  std::vector<Entry> entries_ GUARDED_BY(mutex_);
  std::string compiling_ GUARDED_BY(mutex_);
  std::atomic<size_t> size_{0};  // of entries_, readable without the lock
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_REQUEST_TENSOR_QUEUE_H_
