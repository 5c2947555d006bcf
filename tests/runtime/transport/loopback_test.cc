// Ranks as threads: checks where they are as strict as MPI. Every test of a
// whole job shows that data and messages arrive.
#include "runtime/transport/loopback/loopback.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/transport/loopback/point_to_point.h"
#include "tests/runtime/rank_threads.h"

namespace tf_hvd {
namespace {

LoopbackOptions Nodes(std::vector<int> nodes) {
  LoopbackOptions options;
  options.nodes = std::move(nodes);
  return options;
}

TEST(Loopback, DescribesTheDataPath) {
  const auto way = [](const std::vector<int>& nodes) {
    return MakeLoopback(Nodes(nodes))[0]->DescribeData();
  };
  EXPECT_EQ(way({3}), "through shared memory");
  EXPECT_EQ(way({1, 1}), "by messages");
  EXPECT_EQ(way({2, 1}),
            "through shared memory within a machine, by messages between "
            "machines");
}

TEST(LoopbackAbort, SmallestRecordWinsAndRingsAllBells) {
  const auto worlds = MakeLoopback(Nodes({1, 2}));
  EXPECT_EQ(worlds[2]->PollAbort(), std::nullopt);
  worlds[1]->RaiseAbort({AbortRecord::kFailed, 1, "first"});
  RunRanks(3, [&](int rank) {
    worlds[rank]->doorbell()->Wait(int64_t{3600} * 1'000'000'000);
    EXPECT_EQ(worlds[rank]->PollAbort()->text, "first");
  });
  worlds[0]->RaiseAbort({AbortRecord::kStalled, 0, "larger class"});
  EXPECT_EQ(worlds[0]->PollAbort()->text, "first");
  worlds[0]->RaiseAbort({AbortRecord::kFailed, 0, "smaller rank"});
  EXPECT_EQ(worlds[2]->PollAbort()->text, "smaller rank");
  worlds[2]->RaiseAbort({AbortRecord::kDied, 2, "smaller class"});
  EXPECT_EQ(worlds[1]->PollAbort()->text, "smaller class");
}

class LoopbackMessages : public ::testing::Test {
 protected:
  static bool Done(PointToPoint* p2p, PointToPoint::MessageHandle handle) {
    bool done = false;
    EXPECT_TRUE(p2p->Test(handle, &done).ok());
    return done;
  }

  std::shared_ptr<MailRoom> room_ = std::make_shared<MailRoom>(2);
  LoopbackPointToPoint left_{room_, 0};
  LoopbackPointToPoint right_{room_, 1};
};

TEST_F(LoopbackMessages, LengthMismatchIsABug) {
  PointToPoint::MessageHandle handle = 0;
  char got[4];
  ASSERT_TRUE(right_.Receive(0, 0, got, 4, &handle).ok());
  const Status status = left_.Send(1, 0, "abc", 3, &handle);
  EXPECT_EQ(status.code(), StatusCode::kInternal);
}

TEST_F(LoopbackMessages, AbandonedMessagesAreNotAccessed) {
  char got = 'o';
  PointToPoint::MessageHandle handle = 0;
  ASSERT_TRUE(right_.Receive(0, 0, &got, 1, &handle).ok());
  EXPECT_TRUE(right_.Abandon(handle));
  PointToPoint::MessageHandle sent = 0;
  ASSERT_TRUE(left_.Send(1, 0, "n", 1, &sent).ok());
  EXPECT_EQ(got, 'o');
}

TEST_F(LoopbackMessages, DestructorWithdrawsPostedMessages) {
  {
    std::string data(200000, 'q');
    PointToPoint::MessageHandle handle = 0;
    LoopbackPointToPoint short_lived(room_, 0);
    ASSERT_TRUE(short_lived.Send(1, 0, data.data(), data.size(), &handle).ok());
  }
  char got[3];
  PointToPoint::MessageHandle handle = 0;
  ASSERT_TRUE(right_.Receive(0, 0, got, 3, &handle).ok());
  EXPECT_FALSE(Done(&right_, handle));
}

}  // namespace
}  // namespace tf_hvd
