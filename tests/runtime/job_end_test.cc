#include "runtime/execution/job_end.h"

#include <gtest/gtest.h>

#include "base/clock.h"

namespace tf_hvd {
namespace {

constexpr int64_t kStart = 100 * kSecond;

TEST(JobEnd, ARankThatRunsWaitsForNothing) {
  JobEnd end;
  EXPECT_FALSE(end.leaving());
  EXPECT_FALSE(end.closed());
  EXPECT_FALSE(end.aborting());
  EXPECT_FALSE(end.LeavesInVain(kStart + 3600 * kSecond, true, 0));
}

TEST(JobEnd, LeavesInVainIfTheEndDoesNotCome) {
  JobEnd end;
  end.Leave(kStart);
  end.Leave(kStart + 4 * kSecond);  // the first one counts
  EXPECT_TRUE(end.leaving());
  // Data that moves is no excuse: the others are to answer.
  EXPECT_FALSE(end.LeavesInVain(kStart + 3 * kSecond, true, 1));
  EXPECT_FALSE(end.LeavesInVain(kStart + 5 * kSecond, true, 2));
  EXPECT_TRUE(end.LeavesInVain(kStart + 5 * kSecond + 1, true, 3));
  // It has been told; the next time is as far away.
  EXPECT_FALSE(end.LeavesInVain(kStart + 6 * kSecond, true, 4));
  EXPECT_TRUE(end.LeavesInVain(kStart + 11 * kSecond, true, 5));
}

TEST(JobEnd, WhatIsBeforeTheEndMayTakeLongWhileItMoves) {
  JobEnd end;
  end.Leave(kStart);
  end.Close(kStart + 1);
  uint64_t moved = 0;
  for (int second = 4; second <= 40; second += 4) {
    EXPECT_FALSE(end.LeavesInVain(kStart + second * kSecond, true, ++moved));
  }
  EXPECT_FALSE(end.LeavesInVain(kStart + 45 * kSecond, true, moved));
  EXPECT_TRUE(end.LeavesInVain(kStart + 46 * kSecond, true, moved));
}

TEST(JobEnd, WithoutWorkAClosedRankWaitsForNobody) {
  JobEnd end;
  end.Leave(kStart);
  end.Close(kStart);
  EXPECT_FALSE(end.LeavesInVain(kStart + 60 * kSecond, false, 0));
}

TEST(JobEnd, AnotherRankHasLeft) {
  JobEnd end;
  end.Close(kStart);
  EXPECT_TRUE(end.closed());
  EXPECT_FALSE(end.leaving());
  EXPECT_FALSE(end.LeavesInVain(kStart + 60 * kSecond, true, 0));
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
  end.Close(kStart + 10 * kSecond);  // the first one counts
  EXPECT_TRUE(end.OffersOutput(kStart + kSecond));
  EXPECT_FALSE(end.OffersOutput(kStart + kSecond + 1));
}

}  // namespace
}  // namespace tf_hvd
