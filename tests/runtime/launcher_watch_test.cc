#include "runtime/api/launcher_watch.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace tf_hvd {
namespace {

constexpr int kLimitMs = 60'000;

// A chain of processes with these names: each starts the next, and the last one
// acts as a rank. All hold a pipe's end, which shows when the last of them has
// ended. Forked before this process has threads.
class Chain {
 public:
  // `above`: the initial action of the processes above the last.
  Chain(
      const std::vector<std::string>& names, const std::function<void()>& rank,
      const std::function<void()>& above = [] {})
      : above_(above) {
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    EXPECT_EQ(pipe(ends_.data()), 0);
    EXPECT_EQ(pipe(pids_.data()), 0);
    if (fork() == 0) {
      close(ends_[0]);
      Become(names, 0, rank);
    }
    close(ends_[1]);
    ids_.resize(names.size());
    for (size_t i = 0; i < names.size(); ++i) {
      Started one{};
      EXPECT_EQ(read(pids_[0], &one, sizeof(one)), ssize_t{sizeof(one)});
      ids_.at(one.place) = one.id;
    }
  }
  ~Chain() {
    for (const pid_t id : ids_) kill(id, SIGKILL);
    while (waitpid(-1, nullptr, 0) > 0) {
    }
  }
  Chain(const Chain&) = delete;
  Chain& operator=(const Chain&) = delete;

  pid_t id(size_t place) const { return ids_.at(place); }

  // How the last process ended, as returned by waitpid.
  int Ended() {
    EXPECT_FALSE(Lives(kLimitMs));
    int status = 0;
    EXPECT_EQ(waitpid(ids_.back(), &status, 0), ids_.back());
    return status;
  }

  // True if it is still running after this time.
  bool Lives(int milliseconds) {
    pollfd ended{ends_[0], POLLIN, 0};
    return poll(&ended, 1, milliseconds) == 0;
  }

 private:
  struct Started {
    size_t place;
    pid_t id;
  };

  [[noreturn]] void Become(const std::vector<std::string>& names, size_t place,
                           const std::function<void()>& rank) {
    prctl(PR_SET_NAME, names[place].c_str());
    const bool last = place + 1 == names.size();
    if (!last && fork() == 0) Become(names, place + 1, rank);
    if (!last) {
      close(ends_[1]);  // only for the rank
      above_();
    }
    if (last) rank();
    const Started one{place, getpid()};
    if (write(pids_[1], &one, sizeof(one)) != ssize_t{sizeof(one)}) _exit(1);
    for (;;) pause();
  }

  const std::function<void()> above_;
  std::array<int, 2> ends_{};
  std::array<int, 2> pids_{};
  std::vector<pid_t> ids_;
};

// As in a rank: never destroyed.
void Watch() { static_cast<void>(new LauncherWatch(LaunchInfo())); }

TEST(LauncherWatchTest, RankEndsWhenItsLauncherIsKilled) {
  Chain chain({"prterun", "bash", "python"}, Watch);
  EXPECT_TRUE(chain.Lives(1500));
  kill(chain.id(1), SIGKILL);  // processes in between may end
  EXPECT_TRUE(chain.Lives(1500));
  kill(chain.id(0), SIGKILL);
  const int status = chain.Ended();
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGTERM);
}

TEST(LauncherWatchTest, RankIsKilledIfItIgnoresSigterm) {
  Chain chain({"hydra_pmi_proxy", "python"}, [] {
    signal(SIGTERM, SIG_IGN);
    Watch();
  });
  kill(chain.id(0), SIGKILL);
  const int status = chain.Ended();
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGKILL);
}

TEST(LauncherWatchTest, DescendantsEndAsWell) {
  // The child holds the end of the pipe as well.
  Chain chain({"prted", "python"}, [] {
    if (fork() == 0) {
      for (;;) pause();
    }
    Watch();
  });
  kill(chain.id(0), SIGKILL);
  EXPECT_TRUE(WIFSIGNALED(chain.Ended()));
}

TEST(LauncherWatchTest, KeeperEndsItsRank) {
  Chain chain({"prterun", "tf_hvd_run_rank", "python"}, Watch);
  kill(chain.id(0), SIGKILL);
  EXPECT_TRUE(chain.Lives(2500));
}

// As after `pkill -9 -f tf_hvd`, which does not match the program's name.
TEST(LauncherWatchTest, RankEndsWhenItsKeeperIsKilledAsWell) {
  Chain chain({"prterun", "tf_hvd_run_rank", "python"}, Watch);
  kill(chain.id(0), SIGKILL);
  kill(chain.id(1), SIGKILL);
  EXPECT_EQ(WTERMSIG(chain.Ended()), SIGTERM);
}

TEST(LauncherWatchTest, RankThatHasLeftTheJobContinues) {
  Chain chain({"slurmstepd", "python"}, [] {
    auto watch = std::make_unique<LauncherWatch>(LaunchInfo());
    watch.reset();
  });
  kill(chain.id(0), SIGKILL);
  EXPECT_TRUE(chain.Lives(2500));
}

// A socket of this machine in place of srun's.
class Srun {
 public:
  explicit Srun(const char* address) {
    launch_.srun_address = address;
    sockaddr_in any{};
    any.sin_family = AF_INET;
    socklen_t length = sizeof(any);
    auto* const place = reinterpret_cast<sockaddr*>(&any);
    EXPECT_EQ(bind(socket_, place, length), 0);
    EXPECT_EQ(listen(socket_, 1), 0);
    EXPECT_EQ(getsockname(socket_, place, &length), 0);
    launch_.srun_port = ntohs(any.sin_port);
  }
  void End() { close(socket_); }
  // As a rank, which does not have the socket.
  void Watch() {
    static_cast<void>(new LauncherWatch(launch_));
    End();
  }

 private:
  const int socket_ = socket(AF_INET, SOCK_STREAM, 0);
  LaunchInfo launch_;
};

TEST(LauncherWatchTest, RankEndsWhenItsSrunIsKilled) {
  Srun srun("127.0.0.1");
  Chain chain(
      {"slurmstepd", "python"}, [&] { srun.Watch(); }, [&] { srun.End(); });
  EXPECT_TRUE(chain.Lives(1500));
  srun.End();
  EXPECT_FALSE(chain.Lives(kLimitMs));
}

TEST(LauncherWatchTest, RemoteSrunIsNotConfusedWithALocalPort) {
  Srun srun("192.0.2.1");  // RFC 5737: an address of no machine
  Chain chain(
      {"slurmstepd", "python"}, [&] { srun.Watch(); }, [&] { srun.End(); });
  srun.End();
  EXPECT_TRUE(chain.Lives(2500));
}

// Creates a file with a name that starts with `path`.
std::string NewFile(std::string path) {
  path += "XXXXXX";
  const int file = mkstemp(path.data());
  EXPECT_EQ(ftruncate(file, 4096), 0);
  close(file);
  return path;
}

TEST(LauncherWatchTest, OnlySegmentsOfMpiAreRemoved) {
  const std::string mpis = NewFile("/dev/shm/sm_segment.");
  const std::string other = NewFile("/dev/shm/launcher_watch_test.");
  Chain chain({"prterun", "python"}, [&] {
    for (const std::string& path : {mpis, other}) {
      const int file = open(path.c_str(), O_RDWR);
      mmap(nullptr, 4096, PROT_READ, MAP_SHARED, file, 0);
    }
    Watch();
  });
  kill(chain.id(0), SIGKILL);
  chain.Ended();
  EXPECT_NE(access(mpis.c_str(), F_OK), 0);
  EXPECT_EQ(access(other.c_str(), F_OK), 0);
  unlink(other.c_str());
}

}  // namespace
}  // namespace tf_hvd
