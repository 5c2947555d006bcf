#include "runtime/transport/segment/fd_guard.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <utility>

namespace tf_hvd {
namespace {

constexpr std::chrono::seconds kGrace{5};

// True if the pipe was closed, false if the thread was asked to end. This
// thread blocks all signals: after a signal the read would be repeated with the
// same number, which may be the script's socket by then.
bool AwaitCut(const OpenFile& read_end) {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  char byte = 0;
  ssize_t got = 0;
  do {
    got = read(read_end.number(), &byte, 1);
  } while (got < 0 && errno == EINTR && read_end.IsOpen());
  return got != 1;
}

}  // namespace

// A thread blocked in a read keeps its end of the pipe open: it notices the
// closing only when the other end is closed as well.
FdGuard::FdGuard(std::function<void()> on_cut)
    : alarm_(std::make_shared<Alarm>()) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return;
  read_ = OpenFile(ends[0]);
  write_ = OpenFile(ends[1]);
  alarm_->on_cut = std::move(on_cut);
  thread_ = std::thread([end = read_, alarm = alarm_] {
    if (!AwaitCut(end)) return;
    {
      const MutexLock lock(&alarm->mutex);
      if (!alarm->on_cut) return;
      alarm->on_cut();
    }
    // Time to raise the error and exit. MPI's threads, which have lost their
    // files as well, may block the exit indefinitely.
    std::this_thread::sleep_for(kGrace);
    _exit(1);
  });
}

FdGuard::~FdGuard() {
  if (!thread_.joinable()) return;
  {
    const MutexLock lock(&alarm_->mutex);
    alarm_->on_cut = nullptr;
  }
  const char byte = 1;
  const bool told = write_.IsOpen() && write(write_.number(), &byte, 1) == 1;
  // A forked child may hold the pipe that this process has lost: then the
  // thread cannot be ended.
  if (told) {
    thread_.join();
  } else {
    thread_.detach();
  }
  read_.Close();
  write_.Close();
}

}  // namespace tf_hvd
