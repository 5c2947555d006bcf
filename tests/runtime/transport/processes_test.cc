#include "base/processes.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

namespace tf_hvd {
namespace {

TEST(ProcessesTest, FindsThisProcess) {
  const auto self = FindProcess(getpid());
  ASSERT_TRUE(self.has_value());
  EXPECT_EQ(self->parent, getppid());
  EXPECT_FALSE(self->ended);
  EXPECT_FALSE(self->stopped);
  EXPECT_EQ(FindProcess(getpid())->start, self->start);
  EXPECT_EQ(MarkOf(*self).find(std::to_string(getpid()) + ":"), 0u);
  EXPECT_EQ(AllProcesses().count(getpid()), 1u);
  EXPECT_FALSE(HasThread(getpid(), "a name of none"));
  std::thread named([] {
    pthread_setname_np(pthread_self(), "of a thread");
    EXPECT_TRUE(HasThread(getpid(), "of a thread"));
  });
  named.join();
  EXPECT_FALSE(FindProcess(-1).has_value());
}

TEST(ProcessesTest, FindsTheNearestLauncherAbove) {
  std::map<pid_t, Process> all;
  all[1] = {1, 0, "systemd", "0", false};
  all[5] = {5, 1, "prterun", "0", false};
  all[6] = {6, 5, "bash", "0", false};
  all[7] = {7, 6, "python", "0", false};
  all[8] = {8, 7, "mpiexec", "0", false};
  all[9] = {9, 8, "python", "0", false};
  EXPECT_EQ(LauncherAbove(7, all), 5);
  EXPECT_EQ(LauncherAbove(9, all), 8);
  EXPECT_EQ(LauncherAbove(5, all), 0);
  EXPECT_EQ(LauncherAbove(77, all), 0);
}

// Its folder in /proc was opened, but does not exist any more when it is read:
// an exception used to end the calling process.
TEST(ProcessesTest, ProcessMayEndWhileItIsRead) {
  constexpr int kProcesses = 200;
  for (int i = 0; i < kProcesses; ++i) {
    const pid_t process = fork();
    if (process == 0) {
      while (true) pause();
    }
    std::atomic<bool> seen{false};
    std::thread look([&seen, process] {
      while (FindProcess(process)) seen = true;
    });
    while (!seen) std::this_thread::yield();
    kill(process, SIGKILL);
    EXPECT_EQ(waitpid(process, nullptr, 0), process);
    look.join();
    EXPECT_FALSE(HasThread(process, "python"));
  }
}

}  // namespace
}  // namespace tf_hvd
