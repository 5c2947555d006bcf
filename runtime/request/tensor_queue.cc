#include "runtime/request/tensor_queue.h"

#include <utility>

#include "runtime/base/clock.h"

namespace tf_hvd {

void TensorQueue::Push(Entry entry) {
  entry.submitted_ns = NowNs();
  const std::lock_guard<std::mutex> lock(mutex_);
  compiling_.clear();
  entries_.push_back(std::move(entry));
  size_ = entries_.size();
}

std::vector<Entry> TensorQueue::Drain() {
  if (Empty()) return {};
  const std::lock_guard<std::mutex> lock(mutex_);
  size_ = 0;
  return std::exchange(entries_, {});
}

void TensorQueue::NoteCompilation(const std::string& step) {
  const std::lock_guard<std::mutex> lock(mutex_);
  compiling_ = step;
}

std::string TensorQueue::compiling() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return compiling_;
}

}  // namespace tf_hvd
