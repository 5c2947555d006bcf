#include "kernels/xla/step_threads.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

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
  std::mutex mutex;  // guards all below
  std::condition_variable changed;
  std::deque<std::function<void()>> works;
  int threads = 0;
  int idle = 0;
  bool stopping = false;
};

StepThreads::StepThreads() : shared_(std::make_shared<Shared>()) {}

StepThreads::~StepThreads() {
  const std::lock_guard<std::mutex> lock(shared_->mutex);
  shared_->stopping = true;
  shared_->changed.notify_all();
}

void StepThreads::Run(std::function<void()> work) {
  std::unique_lock<std::mutex> lock(shared_->mutex);
  if (static_cast<int>(shared_->works.size()) >= shared_->idle &&
      shared_->threads < shared_->limit) {
    try {
      std::thread([shared = shared_] { Loop(shared); }).detach();
      ++shared_->threads;
    } catch (const std::system_error&) {
      if (shared_->threads == 0) {
        lock.unlock();
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
  std::unique_lock<std::mutex> lock(shared->mutex);
  for (;;) {
    ++shared->idle;
    shared->changed.wait(
        lock, [&] { return shared->stopping || !shared->works.empty(); });
    --shared->idle;
    if (shared->works.empty()) return;
    const std::function<void()> work = std::move(shared->works.front());
    shared->works.pop_front();
    lock.unlock();
    work();
    lock.lock();
  }
}

}  // namespace tf_hvd
