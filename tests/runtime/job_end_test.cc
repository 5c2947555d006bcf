#include "runtime/execution/job_end.h"

#include <gtest/gtest.h>

#include "base/clock.h"

namespace tf_hvd {
namespace {

constexpr int64_t kStart = 100 * kSecond;

TEST(JobEnd, RunningRankNeverTimesOut) {
  JobEnd end;
  EXPECT_FALSE(end.leaving());
  EXPECT_FALSE(end.closed());
  EXPECT_FALSE(end.aborting());
  EXPECT_FALSE(end.LeaveTimedOut(kStart + 3600 * kSecond, true, 0));
}

TEST(JobEnd, LeaveTimesOutWithoutAnEnd) {
  JobEnd end;
  end.Leave(kStart);
  end.Leave(kStart + 4 * kSecond);  // only the first call has an effect
  EXPECT_TRUE(end.leaving());
  // Moving data does not matter: the other ranks must answer.
  EXPECT_FALSE(end.LeaveTimedOut(kStart + 3 * kSecond, true, 1));
  EXPECT_FALSE(end.LeaveTimedOut(kStart + 5 * kSecond, true, 2));
  EXPECT_TRUE(end.LeaveTimedOut(kStart + 5 * kSecond + 1, true, 3));
  // Reported; the next time-out takes as long.
  EXPECT_FALSE(end.LeaveTimedOut(kStart + 6 * kSecond, true, 4));
  EXPECT_TRUE(end.LeaveTimedOut(kStart + 11 * kSecond, true, 5));
}

TEST(JobEnd, WorkBeforeTheEndMayTakeLongWhileItMoves) {
  JobEnd end;
  end.Leave(kStart);
  end.Close(kStart + 1);
  uint64_t moved = 0;
  for (int second = 4; second <= 40; second += 4) {
    EXPECT_FALSE(end.LeaveTimedOut(kStart + second * kSecond, true, ++moved));
  }
  EXPECT_FALSE(end.LeaveTimedOut(kStart + 45 * kSecond, true, moved));
  EXPECT_TRUE(end.LeaveTimedOut(kStart + 46 * kSecond, true, moved));
}

TEST(JobEnd, ClosedRankWithoutWorkNeverTimesOut) {
  JobEnd end;
  end.Leave(kStart);
  end.Close(kStart);
  EXPECT_FALSE(end.LeaveTimedOut(kStart + 60 * kSecond, false, 0));
}

TEST(JobEnd, AnotherRankHasLeft) {
  JobEnd end;
  end.Close(kStart);
  EXPECT_TRUE(end.closed());
  EXPECT_FALSE(end.leaving());
  EXPECT_FALSE(end.LeaveTimedOut(kStart + 60 * kSecond, true, 0));
}

TEST(JobEnd, AnAbortHoldsWhenNoSmallerRecordCanCome) {
  JobEnd end;
  EXPECT_FALSE(end.AbortHolds(kStart));
  EXPECT_TRUE(end.aborting());
  EXPECT_FALSE(end.AbortHolds(kStart + kSecond / 2 - 1));
  EXPECT_TRUE(end.AbortHolds(kStart + kSecond / 2));
  EXPECT_TRUE(end.AbortHolds(kStart + kSecond));
}

TEST(JobEnd, OutputIsOfferedForASecondAfterTheEnd) {
  JobEnd end;
  end.Close(kStart);
  end.Close(kStart + 10 * kSecond);  // only the first call has an effect
  EXPECT_TRUE(end.OffersOutput(kStart + kSecond));
  EXPECT_FALSE(end.OffersOutput(kStart + kSecond + 1));
}

}  // namespace
}  // namespace tf_hvd
