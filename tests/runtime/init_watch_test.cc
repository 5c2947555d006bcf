// What is said of ranks that do not come to init.
#include "runtime/api/init_watch.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <unistd.h>

#include <map>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/processes.h"

namespace tf_hvd {
namespace {

LaunchInfo LaunchOf(int size, int local_size) {
  LaunchInfo launch;
  launch.size = size;
  launch.local_size = local_size;
  return launch;
}

InitView Seen() {
  InitView view;
  view.launcher_seen = true;
  view.ranks[0] = {true, "process 10 (python a.py)"};
  view.ranks[1] = {false, "process 11 (python a.py)"};
  return view;
}

TEST(InitWatchTest, NamesWhoHasNotCalledInit) {
  EXPECT_EQ(DescribeWait(Seen(), LaunchOf(2, 2), {0, 1}, {}, 30),
            "init() has waited 30 s for other ranks; rank 1, process 11 "
            "(python a.py), has not called it yet (still importing, or stuck "
            "before it). All ranks of the job must call hvd.init()");
}

TEST(InitWatchTest, NamesWhoHasEnded) {
  const LaunchInfo launch = LaunchOf(4, 4);
  const auto ended = EndedRanks(Seen(), launch, {0, 1, 2, 3}, {});
  EXPECT_EQ(ended, (std::vector<int>{2, 3}));
  const std::string text =
      DescribeWait(Seen(), launch, {0, 1, 2, 3}, ended, 30);
  EXPECT_NE(text.find("; ranks 2, 3 have ended without calling it."),
            std::string::npos)
      << text;
}

TEST(InitWatchTest, WhoIsNotNeededMayEnd) {
  EXPECT_TRUE(EndedRanks(Seen(), LaunchOf(3, 3), {0, 1}, {}).empty());
}

TEST(InitWatchTest, AProcessThatDoesNotSayItsRankMayBeAnyRank) {
  InitView view = Seen();
  view.unknown = 1;
  EXPECT_TRUE(EndedRanks(view, LaunchOf(3, 3), {0, 1, 2}, {}).empty());
  const std::string text =
      DescribeWait(view, LaunchOf(3, 3), {0, 1, 2}, {}, 30);
  EXPECT_NE(text.find("1 of the 3 ranks of this host have no process any more"),
            std::string::npos)
      << text;
}

TEST(InitWatchTest, OfOtherHostsThereIsNoWord) {
  const LaunchInfo launch = LaunchOf(8, 2);
  EXPECT_TRUE(EndedRanks(Seen(), launch, {0, 1, 2, 3}, {}).empty());
  // But one that was seen here has ended.
  EXPECT_EQ(EndedRanks(Seen(), launch, {0, 1, 2, 3}, {0, 1, 3}),
            (std::vector<int>{3}));
  const std::string text = DescribeWait(Seen(), launch, {0, 1}, {}, 30);
  EXPECT_NE(text.find("nothing is known of the 6 ranks on other hosts"),
            std::string::npos)
      << text;
}

TEST(InitWatchTest, AllHaveCome) {
  InitView view = Seen();
  view.ranks[1].in_init = true;
  const std::string text = DescribeWait(view, LaunchOf(4, 2), {0, 1}, {}, 30);
  EXPECT_NE(text.find("the 2 ranks of this host have all called it"),
            std::string::npos)
      << text;
}

TEST(InitWatchTest, WhoIsStoppedIsNamed) {
  InitView view = Seen();
  view.ranks[1].process = "process 5 (python)";
  view.ranks[1].stopped = true;
  const std::string told = "; rank 1, process 5 (python), is stopped (SIGSTOP";
  for (const bool in_init : {false, true}) {
    view.ranks[1].in_init = in_init;
    const std::string text = DescribeWait(view, LaunchOf(4, 2), {0, 1}, {}, 30);
    EXPECT_NE(text.find(told), std::string::npos) << text;
    EXPECT_EQ(text.find("importing"), std::string::npos) << text;
  }
}

TEST(InitWatchTest, WithoutALauncherNothingIsSeen) {
  const std::string text =
      DescribeWait(InitView(), LaunchOf(2, 2), {0, 1}, {}, 30);
  EXPECT_NE(text.find("cannot be seen from here"), std::string::npos) << text;
  EXPECT_TRUE(EndedRanks(InitView(), LaunchOf(2, 2), {0, 1}, {}).empty());
}

TEST(ProcessesTest, KnowsThisOne) {
  const auto self = FindProcess(getpid());
  ASSERT_TRUE(self.has_value());
  EXPECT_EQ(self->parent, getppid());
  EXPECT_FALSE(self->ended);
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

TEST(ProcessesTest, TheNearestLauncherAbove) {
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

}  // namespace
}  // namespace tf_hvd
