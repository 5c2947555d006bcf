// TensorQueue: what TensorFlow's threads have submitted and the cycle has not
// seen yet (stage 4). Unbounded: a kernel must not block.
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

  // Holder of the progress lock: everything, in the order of submission.
  std::vector<Entry> Drain();

  // Any thread. After Push has returned, false until a Drain.
  bool Empty() const { return size_ == 0; }

  // Any thread. XLA has begun to compile a step. Nothing tells when that is
  // over but that calls come again: the next Push ends it.
  void NoteCompilation(const std::string& step);
  // Any thread. The step; empty: none.
  std::string compiling() const;

 private:
  mutable Mutex mutex_;
  std::vector<Entry> entries_ GUARDED_BY(mutex_);
  std::string compiling_ GUARDED_BY(mutex_);
  std::atomic<size_t> size_{0};  // of entries_, readable without the lock
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_REQUEST_TENSOR_QUEUE_H_
