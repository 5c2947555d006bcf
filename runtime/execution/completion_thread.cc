#include "runtime/execution/completion_thread.h"

#include <pthread.h>

#include <iterator>
#include <utility>

namespace tf_hvd {

void CompletionThread::Add(std::vector<Outcome> outcomes) {
  if (!thread_.joinable()) {
    thread_ = std::thread([this] { Loop(); });
    pthread_setname_np(thread_.native_handle(), kThreadName);
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::move(outcomes.begin(), outcomes.end(), std::back_inserter(outcomes_));
  }
  changed_.notify_one();
}

void CompletionThread::Stop() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void CompletionThread::Loop() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || !outcomes_.empty(); });
    if (outcomes_.empty()) return;
    std::vector<Outcome> outcomes = std::exchange(outcomes_, {});
    lock.unlock();
    fire_(std::move(outcomes));
    lock.lock();
  }
}

}  // namespace tf_hvd
