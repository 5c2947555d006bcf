// Transfer times between simulated ranks, and virtual time.
#include "benchmarks/scale/network.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "benchmarks/scale/virtual_time.h"

namespace tf_hvd::scale {
namespace {

NetworkCosts Costs() {
  NetworkCosts costs;
  costs.latency_ns = 1000;
  costs.byte_ns = 2;
  costs.inside_latency_ns = 10;
  costs.inside_byte_ns = 1;
  return costs;
}

TEST(VirtualTimeTest, FibersResumeInTheOrderOfTheirChargedTime) {
  VirtualTime time;
  std::string order;
  const auto works = [&](const char* name, double ns) {
    return [&, name, ns] {
      for (int i = 0; i < 3; ++i) {
        time.Charge(ns);
        time.Settle();
        order += name + std::to_string(NowNs()) + " ";
      }
    };
  };
  Fiber slow(&time, works("a", 1000));
  Fiber fast(&time, works("b", 600));
  time.At(0, [&] { time.Resume(&slow); });
  time.At(0, [&] { time.Resume(&fast); });
  while (time.RunNext()) {
  }
  EXPECT_EQ(order, "b600 a1000 b1200 b1800 a2000 a3000 ");
}

TEST(VirtualTimeDeathTest, TimeNeverDecreases) {
  VirtualTime time;
  time.At(1000, [&] { time.At(999, [] {}); });
  EXPECT_EXIT(time.RunNext(), testing::ExitedWithCode(1),
              "at 1000 ns an event has an invalid time, 999 ns");
}

TEST(VirtualTimeDeathTest, InvalidTimeEndsTheProgram) {
  EXPECT_EQ(WholeNs(1e15 + 0.5), 1'000'000'000'000'000);
  for (const double ns : {1e30, -1e30, std::nan("")}) {
    EXPECT_EXIT(WholeNs(ns), testing::ExitedWithCode(1), "invalid duration: ");
  }
}

TEST(VirtualTimeTest, DefaultClockIsTheMachines) {
  const int64_t before_ns = NowNs();
  EXPECT_GT(before_ns, 0);
  EXPECT_GE(NowNs(), before_ns);
}

TEST(NetworkTest, CardsSendSequentiallyAndAreFullDuplex) {
  VirtualTime time;
  Network network(&time, Costs(), {0, 0, 1, 2});
  EXPECT_EQ(network.Carry(0, 1, 100), 10 + 100);  // within a node
  EXPECT_EQ(network.Carry(0, 2, 100), 1000 + 200);
  EXPECT_EQ(network.Carry(1, 3, 50), 1000 + 200 + 100);  // on the same card
  EXPECT_EQ(network.Carry(2, 0, 100), 1000 + 200);  // the opposite direction
  EXPECT_EQ(network.Carry(2, 3, 0), 1000 + 200 + 100);  // after earlier data
  EXPECT_EQ(network.messages_across(), 4u);
  EXPECT_EQ(network.bytes_across(), 250);
}

TEST(NetworkTest, InitialBurstPassesImmediately) {
  VirtualTime time;
  NetworkCosts costs = Costs();
  costs.burst_bytes = 150;
  Network network(&time, costs, {0, 1});
  EXPECT_EQ(network.Carry(0, 1, 100), 1000);
  EXPECT_EQ(network.Carry(0, 1, 100), 1000 + 2 * (100 + 100 - 150));
  EXPECT_EQ(network.Carry(0, 1, 100), 1000 + 2 * (100 + 100 - 150) + 2 * 100);
}

// The end of the last of 2 (n - 1) steps, in which each rank sends the n-th
// part to the next rank once it has received one from the previous rank.
double RingByMessages(const NetworkCosts& costs, int ranks, size_t bytes) {
  VirtualTime time;
  std::vector<size_t> nodes;
  for (int rank = 0; rank < ranks; ++rank) {
    nodes.push_back(static_cast<size_t>(rank));
  }
  Network network(&time, costs, nodes);
  int64_t last_ns = 0;
  std::function<void(int, int)> send = [&](int rank, int step) {
    if (step == 2 * (ranks - 1)) return;
    const int next = (rank + 1) % ranks;
    const int64_t there_ns =
        network.Carry(rank, next, bytes / static_cast<size_t>(ranks));
    last_ns = std::max(last_ns, there_ns);
    time.At(there_ns, [&send, next, step] { send(next, step + 1); });
  };
  for (int rank = 0; rank < ranks; ++rank) {
    time.At(0, [&send, rank] { send(rank, 0); });
  }
  while (time.RunNext()) {
  }
  return static_cast<double>(last_ns);
}

TEST(NetworkTest, RingTimeEqualsThatOfItsMessages) {
  for (const int ranks : {2, 5, 16}) {
    VirtualTime time;
    std::vector<size_t> nodes;
    for (int rank = 0; rank < ranks; ++rank) {
      nodes.push_back(static_cast<size_t>(rank));
    }
    const Network network(&time, Costs(), nodes);
    const size_t less = 1'600'000'000, more = 3'200'000'000;
    EXPECT_DOUBLE_EQ(network.RingNs(more) - network.RingNs(less),
                     RingByMessages(Costs(), ranks, more) -
                         RingByMessages(Costs(), ranks, less))
        << ranks;
  }
}

TEST(NetworkTest, TreesForFewBytesRingForMany) {
  VirtualTime time;
  std::vector<size_t> nodes;
  for (size_t rank = 0; rank < 512; ++rank) nodes.push_back(rank / 4);
  const Network network(&time, Costs(), nodes);
  EXPECT_LT(network.TreesNs(1e4), network.RingNs(1e4) / 5);
  EXPECT_LT(network.RingNs(1e9), network.TreesNs(1e9));
}

TEST(NetworkTest, SingleRankSendsNothing) {
  VirtualTime time;
  const Network network(&time, Costs(), {0});
  EXPECT_EQ(network.RingNs(1e6), 0);
  EXPECT_EQ(network.TreesNs(1e6), 0);
}

}  // namespace
}  // namespace tf_hvd::scale
