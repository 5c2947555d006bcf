#include "runtime/base/processes.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <string>
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

// A rank's program that came from a standby is not below its launcher.
TEST(ProcessesTest, WhatStandsInForAProgramGivesItsPlace) {
  int programs[2];
  ASSERT_EQ(pipe(programs), 0);
  const pid_t standby = fork();
  if (standby == 0) {
    prctl(PR_SET_NAME, "tf_hvd_standby");
    const pid_t program = fork();
    if (program == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      for (;;) pause();
    }
    if (write(programs[1], &program, sizeof(program)) < 0) _exit(1);
    for (;;) pause();
  }
  pid_t program = 0;
  ASSERT_EQ(read(programs[0], &program, sizeof(program)),
            ssize_t{sizeof(program)});
  const auto stand_in_for = [](pid_t process) {
    const pid_t child = fork();
    if (child != 0) return child;
    prctl(PR_SET_NAME, ("tf_hvd:" + std::to_string(process)).c_str());
    for (;;) pause();
  };
  const pid_t stand_in = stand_in_for(program);
  // Not of what comes from no standby: anybody may take such a name.
  const pid_t liar = stand_in_for(standby);
  std::map<pid_t, Process> all = AllProcesses();
  while (all.count(stand_in) != 0 || all[liar].name.rfind("tf_hvd:", 0) != 0) {
    all = AllProcesses();
  }
  EXPECT_EQ(all[program].stand_in, stand_in);
  EXPECT_EQ(all[program].parent, getpid());
  EXPECT_EQ(all[standby].stand_in, 0);
  for (const pid_t process : {standby, stand_in, liar}) {
    kill(process, SIGKILL);
    EXPECT_EQ(waitpid(process, nullptr, 0), process);
  }
  EXPECT_EQ(StartedBy(), getppid());
}

}  // namespace
}  // namespace tf_hvd
