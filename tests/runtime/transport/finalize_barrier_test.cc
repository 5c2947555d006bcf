#include "runtime/transport/liveness/finalize_barrier.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "tests/runtime/rank_threads.h"

namespace tf_hvd {
namespace {

std::unique_ptr<ShmSegment> NewSegment(int local_size) {
  std::unique_ptr<ShmSegment> segment;
  EXPECT_TRUE(ShmSegment::Create({local_size}, &segment).ok());
  return segment;
}

// A process that claims a rank and then does `work`. Killed in the destructor.
class Peer {
 public:
  Peer(const std::string& name, int local_size, int local_rank,
       const std::function<void(ShmSegment*)>& work) {
    int claimed[2];
    EXPECT_EQ(pipe(claimed), 0);
    process_ = fork();
    if (process_ == 0) {
      std::unique_ptr<ShmSegment> segment;
      if (!ShmSegment::Attach(name, {local_size}, &segment).ok()) _exit(1);
      if (!segment->ClaimAlive(local_rank).ok()) _exit(1);
      if (write(claimed[1], "c", 1) != 1) _exit(1);
      work(segment.get());
      _exit(0);
    }
    char done;
    EXPECT_EQ(read(claimed[0], &done, 1), 1);
    close(claimed[0]);
    close(claimed[1]);
  }

  ~Peer() {
    if (process_ == 0) return;
    kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
  }

  // Its exit status.
  int Join() {
    int status = 0;
    EXPECT_GT(waitpid(std::exchange(process_, 0), &status, 0), 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  // Returns when the process is stopped.
  void Stop() {
    kill(process_, SIGSTOP);
    int status = 0;
    EXPECT_EQ(waitpid(process_, &status, WUNTRACED), process_);
    EXPECT_TRUE(WIFSTOPPED(status));
  }

  void GoOn() { kill(process_, SIGCONT); }

  void Kill() {
    siginfo_t info = {};
    kill(process_, SIGKILL);
    EXPECT_EQ(
        waitid(P_PID, static_cast<id_t>(process_), &info, WEXITED | WNOWAIT),
        0);
  }

 private:
  pid_t process_ = 0;
};

void Sleep(ShmSegment*) { pause(); }

class FinalizeBarrierTest : public ::testing::Test {
 protected:
  static constexpr int kRanks = 3;

  FinalizeBarrierTest() { EXPECT_TRUE(segment_->ClaimAlive(0).ok()); }

  // This rank leaves.
  bool Wait() {
    segment_->MarkLeft(0);
    return FinalizeBarrier(segment_.get(), kRanks, 0).Wait(&absent_);
  }

  const std::unique_ptr<ShmSegment> segment_ = NewSegment(kRanks);
  std::optional<FinalizeBarrier::Absent> absent_;
  Watchdog watchdog_{[] { return "a finalize barrier"; }};
};

TEST_F(FinalizeBarrierTest, AllRanksArrive) {
  const auto leave = [](int rank) {
    return [rank](ShmSegment* segment) {
      // As in a job: before any rank leaves, all have claimed their ranks.
      while (!segment->HasLeft(0)) std::this_thread::yield();
      std::optional<FinalizeBarrier::Absent> absent;
      segment->MarkLeft(rank);
      _exit(FinalizeBarrier(segment, kRanks, rank).Wait(&absent) ? 0 : 1);
    };
  };
  Peer one(segment_->name(), kRanks, 1, leave(1));
  Peer two(segment_->name(), kRanks, 2, leave(2));
  EXPECT_TRUE(Wait());
  EXPECT_FALSE(absent_.has_value());
  EXPECT_EQ(one.Join(), 0);
  EXPECT_EQ(two.Join(), 0);
}

// A rank may save a checkpoint for minutes while the others have nothing to do.
TEST_F(FinalizeBarrierTest, WaitsForABusyRank) {
  const Peer one(segment_->name(), kRanks, 1, Sleep);
  const Peer two(segment_->name(), kRanks, 2, Sleep);
  segment_->MarkLeft(1);
  std::thread last([this] {
    std::this_thread::sleep_for(
        std::chrono::nanoseconds(FinalizeBarrier::kPatienceNs * 3 / 2));
    segment_->MarkLeft(2);
  });
  EXPECT_TRUE(Wait());
  EXPECT_TRUE(segment_->HasLeft(2));
  last.join();
}

TEST_F(FinalizeBarrierTest, DoesNotWaitForAStoppedRank) {
  Peer one(segment_->name(), kRanks, 1, Sleep);
  const Peer two(segment_->name(), kRanks, 2, Sleep);
  segment_->MarkLeft(2);
  one.Stop();
  EXPECT_EQ(LifeOf(*segment_, 1), Life::kStopped);
  EXPECT_EQ(LifeOf(*segment_, 2), Life::kRuns);
  EXPECT_FALSE(Wait());
  ASSERT_TRUE(absent_.has_value());
  EXPECT_EQ(absent_->local_rank, 1);
  EXPECT_EQ(absent_->life, Life::kStopped);
  // It continues, and must not wait for the others in its turn.
  one.GoOn();
  absent_.reset();
  EXPECT_FALSE(FinalizeBarrier(segment_.get(), kRanks, 1).Wait(&absent_));
  EXPECT_FALSE(absent_.has_value());
}

// Stopped while it was waiting itself.
TEST_F(FinalizeBarrierTest, DoesNotWaitForAStoppedRankThatHasLeft) {
  Peer one(segment_->name(), kRanks, 1, Sleep);
  const Peer two(segment_->name(), kRanks, 2, Sleep);
  segment_->MarkLeft(1);
  segment_->MarkLeft(2);
  one.Stop();
  EXPECT_FALSE(Wait());
  ASSERT_TRUE(absent_.has_value());
  EXPECT_EQ(absent_->local_rank, 1);
}

TEST_F(FinalizeBarrierTest, ShortStopInADebuggerIsAllowed) {
  Peer one(segment_->name(), kRanks, 1, Sleep);
  const Peer two(segment_->name(), kRanks, 2, Sleep);
  segment_->MarkLeft(1);
  segment_->MarkLeft(2);
  one.Stop();
  std::thread debugger([&one] {
    std::this_thread::sleep_for(
        std::chrono::nanoseconds(FinalizeBarrier::kPatienceNs / 5));
    one.GoOn();
  });
  EXPECT_TRUE(Wait());
  debugger.join();
}

TEST_F(FinalizeBarrierTest, DoesNotWaitForADeadRank) {
  const Peer one(segment_->name(), kRanks, 1, Sleep);
  Peer two(segment_->name(), kRanks, 2, Sleep);
  segment_->MarkLeft(2);
  segment_->MarkLeft(1);
  two.Kill();
  EXPECT_EQ(LifeOf(*segment_, 2), Life::kGone);
  EXPECT_FALSE(Wait());
  ASSERT_TRUE(absent_.has_value());
  EXPECT_EQ(absent_->local_rank, 2);
  EXPECT_EQ(absent_->life, Life::kGone);
}

TEST_F(FinalizeBarrierTest, RefusalAppliesToAll) {
  const Peer one(segment_->name(), kRanks, 1, Sleep);
  const Peer two(segment_->name(), kRanks, 2, Sleep);
  segment_->MarkLeft(1);
  segment_->MarkLeft(2);
  FinalizeBarrier(segment_.get(), kRanks, 1).Refuse();
  EXPECT_FALSE(Wait());
  EXPECT_FALSE(absent_.has_value());
}

// A rank in MPI_Finalize must not wait for one that changes its decision.
TEST_F(FinalizeBarrierTest, DecisionIsFinal) {
  EXPECT_FALSE(segment_->settled_end().has_value());
  EXPECT_TRUE(segment_->SettleEnd(true));
  EXPECT_TRUE(segment_->SettleEnd(false));
  EXPECT_EQ(segment_->settled_end(), true);
}

}  // namespace
}  // namespace tf_hvd
