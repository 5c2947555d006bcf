#include "runtime/transport/loopback/loopback.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <thread>
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

TEST(Loopback, TopologyCountsThroughTheNodes) {
  const auto worlds = MakeLoopback(Nodes({2, 3}));
  ASSERT_EQ(worlds.size(), 5u);
  for (int rank = 0; rank < 5; ++rank) {
    const Topology& topology = worlds[rank]->topology();
    EXPECT_EQ(topology.rank, rank);
    EXPECT_EQ(topology.size, 5);
    EXPECT_EQ(topology.nodes.get(),
              (std::vector<std::vector<int>>{{0, 1}, {2, 3, 4}}));
    EXPECT_EQ(topology.hosts[rank], rank < 2 ? "node0" : "node1");
  }
}

TEST(Loopback, OneRankByDefault) {
  const auto worlds = MakeLoopback({});
  ASSERT_EQ(worlds.size(), 1u);
  EXPECT_EQ(worlds[0]->topology().size, 1);
  EXPECT_EQ(worlds[0]->PollAbort(), std::nullopt);
  worlds[0]->Finalize(true);
}

TEST(Loopback, SaysWhichWayDataTakes) {
  const auto way = [](const std::vector<int>& nodes) {
    return MakeLoopback(Nodes(nodes))[0]->DescribeData();
  };
  EXPECT_EQ(way({3}), "through shared memory");
  EXPECT_EQ(way({1, 1}), "by messages");
  EXPECT_EQ(way({2, 1}),
            "through shared memory within a machine, by messages between "
            "machines");
}

TEST(Loopback, EdgesBetweenNeighboursInTheTreeOnly) {
  LoopbackOptions options = Nodes({2, 1, 1});
  options.fan_out = 1;
  const auto worlds = MakeLoopback(options);
  EXPECT_NE(worlds[0]->edge(1), nullptr);
  EXPECT_NE(worlds[0]->edge(2), nullptr);
  EXPECT_EQ(worlds[0]->edge(3), nullptr);
  EXPECT_NE(worlds[2]->edge(3), nullptr);
  EXPECT_EQ(worlds[1]->edge(2), nullptr);
  EXPECT_EQ(worlds[1]->edge(1), nullptr);
}

TEST(LoopbackEdge, WriteTakesWhatFits) {
  LoopbackOptions options = Nodes({2});
  options.edge_bytes = 8;
  const auto worlds = MakeLoopback(options);
  Edge* const out = worlds[0]->edge(1);
  Edge* const in = worlds[1]->edge(0);
  EXPECT_FALSE(in->polled());
  EXPECT_EQ(out->Write("abcdef", 6), 6u);
  EXPECT_FALSE(in->Readable());  // not flushed
  char data[16] = {};
  EXPECT_EQ(in->Read(data, 16), 0u);
  out->Flush();
  EXPECT_TRUE(in->Readable());
  EXPECT_EQ(out->Write("ghijkl", 6), 2u);
  EXPECT_EQ(out->Write("ijkl", 4), 0u);
  EXPECT_EQ(in->Read(data, 4), 4u);
  EXPECT_EQ(out->Write("ijkl", 4), 4u);
  out->Flush();
  EXPECT_EQ(in->Read(data + 4, 12), 8u);
  EXPECT_EQ(std::string(data), "abcdefghijkl");
  EXPECT_FALSE(in->Readable());
  EXPECT_FALSE(out->Readable());  // the other direction
}

// A stream that is much longer than the edge, in both directions at once, with
// a sleeping reader that must be woken.
TEST(LoopbackEdge, StreamsArriveInOrderAndWakeTheReader) {
  constexpr size_t kBytes = 20000;
  LoopbackOptions options = Nodes({2});
  options.edge_bytes = 31;
  const auto worlds = MakeLoopback(options);
  RunRanks(2, [&](int rank) {
    Edge* const edge = worlds[rank]->edge(1 - rank);
    Doorbell* const bell = worlds[rank]->doorbell();
    std::mt19937 random(static_cast<unsigned>(rank));
    std::string sent;
    for (size_t i = 0; i < kBytes; ++i) {
      sent += static_cast<char>(i * 7 + static_cast<size_t>(rank));
    }
    size_t written = 0;
    std::string got;
    while (written < kBytes || got.size() < kBytes) {
      const size_t wanted =
          std::min<size_t>(1 + random() % 50, kBytes - written);
      written += edge->Write(sent.data() + written, wanted);
      edge->Flush();
      char data[20];
      const size_t count = edge->Read(data, 1 + random() % 20);
      got.append(data, count);
      if (count > 0 || got.size() == kBytes) continue;
      if (written < kBytes) {
        std::this_thread::yield();
        continue;
      }
      bell->SetAsleep(true);
      if (!edge->Readable()) bell->Wait(int64_t{3600} * 1'000'000'000);
      bell->SetAsleep(false);
    }
    for (size_t i = 0; i < kBytes; ++i) {
      ASSERT_EQ(got[i], static_cast<char>(i * 7 + size_t{1} -
                                          static_cast<size_t>(rank)));
    }
  });
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

TEST(LoopbackAbort, DeathIsSeenByTheOthers) {
  const auto worlds = MakeLoopback(Nodes({2, 2}));
  LoopbackKill(worlds[3].get());
  const auto record = worlds[0]->PollAbort();
  ASSERT_TRUE(record.has_value());
  EXPECT_EQ(record->error_class, AbortRecord::kDied);
  EXPECT_EQ(record->rank, 3);
  EXPECT_EQ(record->text, "rank 3 (node1) died");
  LoopbackKill(worlds[1].get());
  EXPECT_EQ(worlds[2]->PollAbort()->rank, 1);
}

TEST(Loopback, WorldsMayGoInAnyOrder) {
  auto worlds = MakeLoopback(Nodes({3}));
  worlds[1].reset();
  Edge* const edge = worlds[0]->edge(1);
  EXPECT_EQ(edge->Write("x", 1), 1u);
  edge->Flush();
  worlds[0]->RaiseAbort({AbortRecord::kFailed, 0, "late"});
  worlds[0].reset();
  EXPECT_EQ(worlds[2]->PollAbort()->text, "late");
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

TEST_F(LoopbackMessages, ShortOnesAreCopiedWhenSent) {
  std::string data = "abc";
  PointToPoint::MessageHandle sent = 7;
  ASSERT_TRUE(left_.Send(1, 0, data.data(), 3, &sent).ok());
  EXPECT_TRUE(Done(&left_, sent));
  data = "xyz";
  char got[4] = {};
  PointToPoint::MessageHandle received = 7;
  ASSERT_TRUE(right_.Receive(0, 0, got, 3, &received).ok());
  EXPECT_TRUE(Done(&right_, received));
  EXPECT_STREQ(got, "abc");
}

TEST_F(LoopbackMessages, LongOnesWaitForTheReceiver) {
  const std::string data(200000, 'q');
  std::string got(200000, ' ');
  PointToPoint::MessageHandle sent = 0;
  PointToPoint::MessageHandle received = 0;
  ASSERT_TRUE(left_.Send(1, 0, data.data(), data.size(), &sent).ok());
  EXPECT_FALSE(Done(&left_, sent));
  ASSERT_TRUE(right_.Receive(0, 0, got.data(), got.size(), &received).ok());
  EXPECT_TRUE(Done(&right_, received));
  EXPECT_TRUE(Done(&left_, sent));
  EXPECT_EQ(got, data);
}

TEST_F(LoopbackMessages, ArriveInTheOrderOfPosting) {
  char got[3] = {};
  PointToPoint::MessageHandle received[3];
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(right_.Receive(0, 0, got + i, 1, &received[i]).ok());
  }
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(Done(&right_, received[i]));
    PointToPoint::MessageHandle sent = 0;
    ASSERT_TRUE(left_.Send(1, 0, &"abc"[i], 1, &sent).ok());
    EXPECT_TRUE(Done(&left_, sent));
    EXPECT_TRUE(Done(&right_, received[i]));
  }
  EXPECT_EQ(std::string(got, 3), "abc");
}

TEST_F(LoopbackMessages, OfAnotherLengthAreABug) {
  PointToPoint::MessageHandle handle = 0;
  char got[4];
  ASSERT_TRUE(right_.Receive(0, 0, got, 4, &handle).ok());
  const Status status = left_.Send(1, 0, "abc", 3, &handle);
  EXPECT_EQ(status.code(), StatusCode::kInternal);
}

TEST_F(LoopbackMessages, AbandonedOnesAreNotTouchedAnyMore) {
  char got = 'o';
  PointToPoint::MessageHandle handle = 0;
  ASSERT_TRUE(right_.Receive(0, 0, &got, 1, &handle).ok());
  EXPECT_TRUE(right_.Abandon(handle));
  PointToPoint::MessageHandle sent = 0;
  ASSERT_TRUE(left_.Send(1, 0, "n", 1, &sent).ok());
  EXPECT_EQ(got, 'o');
}

TEST_F(LoopbackMessages, WhatADestroyedRankPostedIsGone) {
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
