#include "runtime/api/init_watch.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>

#include "base/clock.h"
#include "base/log.h"
#include "base/processes.h"

namespace tf_hvd {

std::string DescribeWait(int others, int size, int64_t waited_s) {
  return "init() has waited " + std::to_string(waited_s) + " s for " +
         std::to_string(others) +
         (others == 1 ? " other rank" : " other ranks") + " of " +
         std::to_string(size) + ". All ranks of the job must call hvd.init()";
}

InitWatch::InitWatch(const Config& config, const LaunchInfo& launch, int others)
    : config_(config),
      others_(others),
      size_(launch.size),
      who_("rank " + std::to_string(launch.rank) + " (" + HostName() + ")"),
      start_ns_(NowNs()),
      thread_([this] { Watch(); }) {
  pthread_setname_np(thread_.native_handle(), "tf_hvd_init");
}

InitWatch::~InitWatch() {
  over_.Set();
  thread_.join();
}

void InitWatch::Watch() {
  if (config_.stall_warn_ns == 0 || IsOverAfter(config_.stall_warn_ns)) return;
  if (config_.log_level <= LogLevel::kWarning) {
    WriteLog(LogLevel::kWarning, who_, Text());
  }
  if (config_.stall_stuck_ns == 0 || IsOverAfter(config_.stall_stuck_ns)) {
    return;
  }
  if (config_.log_level <= LogLevel::kError) {
    WriteLog(LogLevel::kError, who_, Text() + ". This process ends here");
  }
  // Another thread is in MPI_Init: exit handlers would wait for it.
  _exit(1);
}

bool InitWatch::IsOverAfter(int64_t limit_ns) {
  return over_.WaitFor(std::max<int64_t>(start_ns_ + limit_ns - NowNs(), 1));
}

std::string InitWatch::Text() const {
  return DescribeWait(others_, size_,
                      (NowNs() - start_ns_ + kSecond / 2) / kSecond);
}

}  // namespace tf_hvd
