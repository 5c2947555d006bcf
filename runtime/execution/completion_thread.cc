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
    const MutexLock lock(&mutex_);
    std::move(outcomes.begin(), outcomes.end(), std::back_inserter(outcomes_));
  }
  changed_.notify_one();
}

void CompletionThread::Stop() {
  if (!thread_.joinable()) return;
  {
    const MutexLock lock(&mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void CompletionThread::Loop() {
  MutexLock lock(&mutex_);
  for (;;) {
    changed_.wait(lock.native(), [this]() REQUIRES(mutex_) {
      return stopping_ || !outcomes_.empty();
    });
    if (outcomes_.empty()) return;
    std::vector<Outcome> outcomes = std::exchange(outcomes_, {});
    lock.Unlock();
    fire_(std::move(outcomes));
    lock.Lock();
  }
}

}  // namespace tf_hvd
