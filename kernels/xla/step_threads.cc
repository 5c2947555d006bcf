#include "kernels/xla/step_threads.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <system_error>
#include <thread>
#include <utility>

#include "base/mutex.h"
#include "compute/float_environment.h"

namespace tf_hvd {
namespace {

int Cores() {
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof(cores), &cores) == 0) {
    return std::max(1, CPU_COUNT(&cores));
  }
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace

struct StepThreads::Shared {
  const int limit = Cores();
  Mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> works GUARDED_BY(mutex);
  int threads GUARDED_BY(mutex) = 0;
  int idle GUARDED_BY(mutex) = 0;
  bool stopping GUARDED_BY(mutex) = false;
};

StepThreads::StepThreads() : shared_(std::make_shared<Shared>()) {}

StepThreads::~StepThreads() {
  const MutexLock lock(&shared_->mutex);
  shared_->stopping = true;
  shared_->changed.notify_all();
}

void StepThreads::Run(std::function<void()> work) {
  MutexLock lock(&shared_->mutex);
  if (static_cast<int>(shared_->works.size()) >= shared_->idle &&
      shared_->threads < shared_->limit) {
    try {
      std::thread([shared = shared_] { Loop(shared); }).detach();
      ++shared_->threads;
    } catch (const std::system_error&) {
      if (shared_->threads == 0) {
        lock.Unlock();
        return work();
      }
    }
  }
  shared_->works.push_back(std::move(work));
  shared_->changed.notify_one();
}

void StepThreads::Loop(const std::shared_ptr<Shared>& shared) {
  pthread_setname_np(pthread_self(), kThreadName);
  FlushDenormals();
  MutexLock lock(&shared->mutex);
  for (;;) {
    ++shared->idle;
    shared->changed.wait(lock.native(), [&]() REQUIRES(shared->mutex) {
      return shared->stopping || !shared->works.empty();
    });
    --shared->idle;
    if (shared->works.empty()) return;
    const std::function<void()> work = std::move(shared->works.front());
    shared->works.pop_front();
    lock.Unlock();
    work();
    lock.Lock();
  }
}

}  // namespace tf_hvd
