#include "runtime/request/tensor_queue.h"

#include <utility>

#include "runtime/base/clock.h"

namespace tf_hvd {

void TensorQueue::Push(Entry entry) {
  entry.submitted_ns = NowNs();
  const std::lock_guard<std::mutex> lock(mutex_);
  entries_.push_back(std::move(entry));
  size_ = entries_.size();
}

std::vector<Entry> TensorQueue::Drain() {
  if (Empty()) return {};
  const std::lock_guard<std::mutex> lock(mutex_);
  size_ = 0;
  return std::exchange(entries_, {});
}

}  // namespace tf_hvd
