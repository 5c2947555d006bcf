#include "runtime/base/processes.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

namespace tf_hvd {
namespace {

TEST(ProcessesTest, ThisOneIsFound) {
  const auto self = FindProcess(getpid());
  ASSERT_TRUE(self.has_value());
  EXPECT_EQ(self->parent, getppid());
  EXPECT_FALSE(self->ended);
  EXPECT_FALSE(self->stopped);
}

// Its folder in /proc was opened and is gone when it is read: an exception then
// ended whoever was looking.
TEST(ProcessesTest, OneMayEndWhileItIsLookedAt) {
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
