// Tests specific to TwoLevelBackend: nodes of all shapes, sets that cover them
// partly, the bytes that cross the network, and types that are rounded for
// sending. collectives_test.cc has those for all backends.
#include "runtime/transport/routing/two_level.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <numeric>
#include <vector>

#include "compute/half_float.h"
#include "tests/runtime/transport/cluster.h"
#include "tests/runtime/transport/juggler.h"
#include "tests/runtime/transport/meter.h"

namespace tf_hvd {
namespace {

// Reduces `values[rank]` of all ranks of the nodes, in place.
template <typename T>
void Allreduce(const Nodes& nodes, const ReduceOptions& options,
               std::vector<std::vector<T>>* values) {
  Cluster cluster(nodes);
  cluster.Run([&](int rank, Collectives* data) {
    std::vector<T>& mine = (*values)[static_cast<size_t>(rank)];
    const auto count = static_cast<int64_t>(mine.size());
    return data->Allreduce(cluster.all, {{mine.data(), mine.data(), count}},
                           options);
  });
}

TEST(TwoLevel, ServesSetsOnSeveralNodes) {
  Cluster cluster(NodesOf({2, 1, 3}));
  Backend& backend = *cluster.two_level[0];
  std::vector<int64_t> values(4);
  const auto serves = [&](const std::vector<int>& ranks, int32_t set) {
    if (set > 0) {
      EXPECT_TRUE(backend.SetAdded(set, ranks).ok());
    }
    return backend.Serves(AllreduceOf(ranks, set, &values));
  };
  EXPECT_TRUE(serves({0, 1, 2, 3, 4, 5}, 0));
  EXPECT_TRUE(serves({0, 1, 2}, 1));
  EXPECT_TRUE(serves({0, 1, 2}, P2PBackend::kSets - 1));
  EXPECT_FALSE(serves({0, 1, 2}, P2PBackend::kSets)) << "no tags";
  EXPECT_FALSE(serves({0, 1}, 2)) << "shm's";
  EXPECT_FALSE(serves({0, 2, 4}, 3)) << "no two ranks share a node";
  EXPECT_TRUE(serves({0, 1, 2}, 4));
  backend.SetRemoved(4);
  EXPECT_FALSE(backend.Serves(AllreduceOf({0, 1, 2}, 4, &values)));
  OperationSpec spec = AllreduceOf({0, 1, 2}, 1, &values);
  spec.reduce.op = ReduceOp::kAdasum;
  EXPECT_FALSE(backend.Serves(spec));
  spec = AllreduceOf({0, 1, 2}, 1, &values);
  spec.memory.kind = MemoryKind::kDevice;
  EXPECT_FALSE(backend.Serves(spec));
  spec = AllreduceOf({0, 1, 2}, 1, &values);
  for (const OpKind kind :
       {OpKind::kBroadcast, OpKind::kAllgather, OpKind::kReducescatter}) {
    spec.kind = kind;
    EXPECT_TRUE(backend.Serves(spec));
  }
  spec.kind = OpKind::kAlltoall;
  EXPECT_FALSE(backend.Serves(spec)) << "nothing to share";
}

TEST(TwoLevel, LeavesNodesOfOneMemberToMessages) {
  const Nodes nodes = NodesOf({1, 1});
  LoopbackArena memory(1);
  ShmBackend shm(memory.arena(), nodes[0], 0, [](size_t) {});
  const TwoLevelBackend backend(nodes, 0, &shm, nullptr);
  std::vector<int64_t> values(4);
  EXPECT_FALSE(backend.Serves(AllreduceOf({0, 1}, 0, &values)));
}

// 300 nodes: a slot of 1 MiB has no room for the parts of all.
TEST(TwoLevel, LeavesManyShortPartsToMessages) {
  Nodes nodes = NodesOf({2, 1});
  for (int rank = 3; rank < 301; ++rank) nodes.push_back({rank});
  LoopbackArena memory(2);
  ShmBackend shm(memory.arena(), nodes[0], 0, [](size_t) {});
  const TwoLevelBackend backend(nodes, 0, &shm, nullptr);
  std::vector<int> ranks(301);
  std::iota(ranks.begin(), ranks.end(), 0);
  std::vector<int64_t> values(4);
  OperationSpec spec = AllreduceOf(ranks, 0, &values);
  EXPECT_TRUE(backend.Serves(spec));
  spec.kind = OpKind::kBroadcast;
  EXPECT_TRUE(backend.Serves(spec));
  spec.kind = OpKind::kAllgather;
  EXPECT_FALSE(backend.Serves(spec));
  spec.kind = OpKind::kReducescatter;
  EXPECT_FALSE(backend.Serves(spec));
}

class TwoLevelShapes : public ::testing::TestWithParam<Nodes> {};
INSTANTIATE_TEST_SUITE_P(InTurn, TwoLevelShapes,
                         ::testing::Values(NodesOf({2, 1}), NodesOf({1, 2}),
                                           NodesOf({2, 2}), NodesOf({1, 3, 2}),
                                           NodesOf({4, 4}),
                                           NodesOf({3, 1, 1, 3})));
// As with `--map-by node` and rank files: ranks with the same place on their
// nodes need not ascend with the nodes.
INSTANTIATE_TEST_SUITE_P(
    Mixed, TwoLevelShapes,
    ::testing::Values(Nodes{{0, 2}, {1, 3}}, Nodes{{0, 3}, {1, 2}},
                      Nodes{{0, 5}, {1, 3, 4}, {2}},
                      Nodes{{0, 5, 6}, {1, 4}, {2, 3, 7}}));

size_t RanksOf(const Nodes& nodes) {
  size_t ranks = 0;
  for (const auto& node : nodes) ranks += node.size();
  return ranks;
}

// Each rank's own power of two: a sum shows which ranks it contains, and how
// often.
TEST_P(TwoLevelShapes, EachRankCountsOnce) {
  const size_t ranks = RanksOf(GetParam());
  // One element; slices that are empty; one piece; several.
  for (const size_t count : {1u, 63u, 65u, 200u, 5000u, 700001u}) {
    std::vector<std::vector<int64_t>> values;
    for (size_t rank = 0; rank < ranks; ++rank) {
      values.emplace_back(count, int64_t{1} << (4 * rank));
      values.back()[count / 2] = -1;
    }
    Allreduce(GetParam(), Options(DType::kInt64, ReduceOp::kSum), &values);
    std::vector<int64_t> expected(count, 0);
    for (size_t rank = 0; rank < ranks; ++rank) {
      for (int64_t& value : expected) value += int64_t{1} << (4 * rank);
    }
    expected[count / 2] = -static_cast<int64_t>(ranks);
    for (const auto& result : values) EXPECT_TRUE(result == expected) << count;
  }
}

TEST_P(TwoLevelShapes, OperationsOfOverlappingSetsInFlight) {
  const Nodes& nodes = GetParam();
  auto sets = OverlappingSets(static_cast<int>(RanksOf(nodes)));
  for (const auto& node : nodes) {
    if (node.size() > 1) sets.push_back(node);
  }
  Cluster cluster(nodes);
  RunRanks(cluster.size(), [&](int rank) {
    const auto& backends = cluster.backends[static_cast<size_t>(rank)];
    // Ten shapes: for each, a third of the operations of in_flight_test.cc.
    Juggler juggler(rank, sets, backends, backends.back()->window(),
                    kOperations / 3);
    while (juggler.busy()) juggler.Turn();
  });
}

// A node's float16 sum would overflow before it is divided.
TEST(TwoLevel, AverageOfLargeHalvesDoesNotOverflow) {
  std::vector<std::vector<uint16_t>> values(
      4, std::vector<uint16_t>(1000, FloatToHalf(60000.0f)));
  Allreduce(NodesOf({2, 2}), Options(DType::kFloat16, ReduceOp::kAverage),
            &values);
  for (const auto& result : values) {
    EXPECT_EQ(HalfToFloat(result[0]), 60000.0f);
    EXPECT_EQ(HalfToFloat(result[999]), 60000.0f);
  }
}

// Scales are applied once, and at the end if the order matters.
TEST(TwoLevel, ScalesOfEveryOperation) {
  const auto reduce = [](ReduceOp op, double postscale) {
    std::vector<std::vector<float>> values = {{1}, {-2}, {3}, {5}};
    Allreduce(NodesOf({2, 2}), Options(DType::kFloat32, op, 2.0, postscale),
              &values);
    EXPECT_EQ(values[0], values[3]);
    return values[0][0];
  };
  EXPECT_EQ(reduce(ReduceOp::kSum, 0.5), 7.0f);
  EXPECT_EQ(reduce(ReduceOp::kAverage, 4.0), 14.0f);
  EXPECT_EQ(reduce(ReduceOp::kMin, -1.0), 4.0f);
  EXPECT_EQ(reduce(ReduceOp::kMax, -1.0), -10.0f);
  EXPECT_EQ(reduce(ReduceOp::kProduct, 0.125), -60.0f);
}

TEST(TwoLevel, ScalesOfHalfProducts) {
  std::vector<std::vector<uint16_t>> values(4, {FloatToHalf(2.0f)});
  Allreduce(NodesOf({2, 2}),
            Options(DType::kFloat16, ReduceOp::kProduct, 1.0, 0.25), &values);
  EXPECT_EQ(HalfToFloat(values[1][0]), 4.0f);
}

TEST(TwoLevel, AveragesOfIntegersAreTruncatedOnce) {
  std::vector<std::vector<int32_t>> values = {{1}, {0}, {1}, {1}, {-5}};
  Allreduce(NodesOf({2, 3}), Options(DType::kInt32, ReduceOp::kAverage),
            &values);
  for (const auto& result : values) EXPECT_EQ(result[0], 0) << "-2 / 5";
}

class TwoLevelBytes : public ::testing::TestWithParam<std::vector<int>> {
 protected:
  static constexpr int64_t kCount = 1 << 18;
  static constexpr size_t kBytes = kCount * sizeof(float);

  Nodes nodes_ = NodesOf(GetParam());
  size_t others_ = nodes_.size() - 1;
  ReduceOptions sum_ = Options(DType::kFloat32, ReduceOp::kSum);
};
INSTANTIATE_TEST_SUITE_P(Nodes, TwoLevelBytes,
                         ::testing::Values(std::vector<int>{2, 2},
                                           std::vector<int>{4, 4},
                                           std::vector<int>{1, 3},
                                           std::vector<int>{2, 2, 2, 2}));

// However many ranks a node has: 2 (n - 1) / n of the tensor for n nodes.
TEST_P(TwoLevelBytes, AllreduceCrossesOncePerNode) {
  const auto run = [&](const Cluster& cluster, Collectives* data, int) {
    std::vector<float> values(kCount, 1.0f);
    const Status status = data->Allreduce(
        cluster.all, {{values.data(), values.data(), kCount}}, sum_);
    EXPECT_EQ(values[kCount - 1], static_cast<float>(cluster.size()));
    return status;
  };
  EXPECT_EQ(SentBy(nodes_, run).bytes, 2 * others_ * kBytes);
}

TEST_P(TwoLevelBytes, BroadcastCrossesOncePerNode) {
  const auto run = [&](const Cluster& cluster, Collectives* data, int rank) {
    const int root = cluster.size() - 1;
    std::vector<float> values(kCount, rank == root ? 7.0f : 0.0f);
    const Status status =
        data->Broadcast(cluster.all, root, values.data(), kBytes);
    EXPECT_EQ(values[kCount - 1], 7.0f);
    return status;
  };
  EXPECT_EQ(SentBy(nodes_, run).bytes, others_ * kBytes);
}

TEST_P(TwoLevelBytes, AllgatherCrossesOncePerNode) {
  const auto run = [&](const Cluster& cluster, Collectives* data, int rank) {
    const std::vector<float> mine(kCount, static_cast<float>(rank));
    std::vector<float> all(kCount * cluster.all.size());
    const Status status = data->Allgather(
        cluster.all, mine.data(),
        std::vector<int64_t>(cluster.all.size(), kBytes), all.data());
    EXPECT_EQ(all.back(), static_cast<float>(cluster.size() - 1));
    return status;
  };
  EXPECT_EQ(SentBy(nodes_, run).bytes, RanksOf(nodes_) * others_ * kBytes);
}

// Each node sends the other nodes' data.
TEST_P(TwoLevelBytes, ReducescatterCrossesOncePerNode) {
  const auto run = [&](const Cluster& cluster, Collectives* data, int) {
    const std::vector<float> values(kCount * cluster.all.size(), 1.0f);
    std::vector<float> mine(kCount);
    const Status status = data->Reducescatter(
        cluster.all, values.data(),
        std::vector<int64_t>(cluster.all.size(), kCount), mine.data(), sum_);
    EXPECT_EQ(mine.back(), static_cast<float>(cluster.size()));
    return status;
  };
  EXPECT_EQ(SentBy(nodes_, run).bytes, RanksOf(nodes_) * others_ * kBytes);
}

// The awaited rank is on another node.
TEST(TwoLevel, AbandonedOperationReleasesItsMemory) {
  Cluster cluster(NodesOf({1, 2}));
  CheckLettingGo(cluster.two_level[0].get(), {0, 1, 2});
}

}  // namespace
}  // namespace tf_hvd
