#include "base/forks.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>

namespace tf_hvd {
namespace {

std::atomic<bool> in_child{false};

void BeforeFork() ACQUIRE(ForkSafeMutex()) { ForkSafeMutex()->Lock(); }

void AfterForkInParent() RELEASE(ForkSafeMutex()) { ForkSafeMutex()->Unlock(); }

void AfterForkInChild() RELEASE(ForkSafeMutex()) {
  in_child = true;
  ForkSafeMutex()->Unlock();
}

}  // namespace

void WatchForks() {
  static const int watched =
      pthread_atfork(BeforeFork, AfterForkInParent, AfterForkInChild);
  static_cast<void>(watched);
}

bool InForkedChild() { return in_child; }

Mutex* ForkSafeMutex() {
  static auto* const mutex = new Mutex;
  return mutex;
}

std::string ForkedText(int rank) {
  return "process " + std::to_string(getpid()) + " was forked from rank " +
         std::to_string(rank) +
         " and is not in the job: it can call rank() and size(), but not "
         "collectives, init() or shutdown(). Make the call in the rank itself. "
         "To run this process independently, start it as a new program "
         "(subprocess, or multiprocessing with \"spawn\") with TF_HVD_ALONE=1 "
         "in its environment";
}

}  // namespace tf_hvd
