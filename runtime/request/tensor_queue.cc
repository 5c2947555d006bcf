#include "runtime/request/tensor_queue.h"

#include <utility>

#include "base/clock.h"

namespace tf_hvd {

void TensorQueue::Push(Entry entry) {
  entry.submitted_ns = NowNs();
  const MutexLock lock(&mutex_);
  compiling_.clear();
  entries_.push_back(std::move(entry));
  size_ = entries_.size();
}

std::vector<Entry> TensorQueue::Drain() {
  if (Empty()) return {};
  const MutexLock lock(&mutex_);
  size_ = 0;
  return std::exchange(entries_, {});
}

void TensorQueue::NoteCompilation(const std::string& step) {
  const MutexLock lock(&mutex_);
  compiling_ = step;
}

std::string TensorQueue::compiling() const {
  const MutexLock lock(&mutex_);
  return compiling_;
}

}  // namespace tf_hvd
