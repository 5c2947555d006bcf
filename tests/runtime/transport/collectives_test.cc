// All collectives; run for each data path (cluster.h).
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "compute/half_float.h"
#include "tests/runtime/transport/cluster.h"

namespace tf_hvd {
namespace {

template <typename T>
using PerRank = std::vector<std::vector<T>>;

template <typename T>
Span InPlace(std::vector<T>* values) {
  return {values->data(), values->data(), static_cast<int64_t>(values->size())};
}

// Allreduces one tensor per rank, in place.
template <typename T>
PerRank<T> Allreduce(int ranks, PerRank<T> values,
                     const ReduceOptions& options) {
  Cluster cluster(ranks);
  cluster.Run([&](int rank, Collectives* data) {
    return data->Allreduce(cluster.all, {InPlace(&values[rank])}, options);
  });
  return values;
}

// 0.xxx times a power of two: sums of these round differently in each order.
PerRank<float> RandomFloats(int ranks, size_t count, unsigned seed) {
  std::mt19937 random(seed);
  PerRank<float> values(static_cast<size_t>(ranks), std::vector<float>(count));
  for (auto& mine : values) {
    for (float& value : mine) {
      value = std::ldexp(static_cast<float>(random()) / 4294967296.0f - 0.5f,
                         static_cast<int>(random() % 12));
    }
  }
  return values;
}

using Floats = std::vector<float>;

Floats SumOf(const std::vector<Floats>& values) {
  Floats sums = values[0];
  for (size_t i = 0; i < sums.size(); ++i) {
    for (size_t rank = 1; rank < values.size(); ++rank) {
      sums[i] += values[rank][i];
    }
  }
  return sums;
}

Floats Divided(Floats values, int divisor) {
  for (float& value : values) value /= static_cast<float>(divisor);
  return values;
}

// For each node, in the order of its ranks.
std::vector<Floats> SumsOfNodes(const PerRank<float>& values) {
  std::vector<Floats> sums;
  for (const auto& node : UsualNodes(static_cast<int>(values.size()))) {
    std::vector<Floats> here;
    for (const int rank : node) here.push_back(values[rank]);
    sums.push_back(SumOf(here));
  }
  return sums;
}

// Sums in the order of the ranks on a node, then of the nodes: the contract.
Floats SequentialSum(const PerRank<float>& values) {
  return SumOf(SumsOfNodes(values));
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

class AllreduceTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, AllreduceTest,
                         ::testing::Values(2, 3, 4, 5, 8));

TEST_P(AllreduceTest, EverySizeSumsInTheOrderOfRanks) {
  const int ranks = GetParam();
  // Below, at and above the limit of short data; two pieces; several.
  for (const size_t count :
       {1u, 2u, 3u, 7u, 4096u, 16384u, 16385u, 70001u, 700001u}) {
    const PerRank<float> values =
        RandomFloats(ranks, count, static_cast<unsigned>(count));
    const PerRank<float> results =
        Allreduce(ranks, values, Options(DType::kFloat32, ReduceOp::kAverage));
    const std::vector<float> expected = Divided(SequentialSum(values), ranks);
    for (const auto& result : results) {
      EXPECT_TRUE(SameBits(result, expected)) << count;
    }
  }
}

// The same elements divided into different spans, after other spans, and a few
// without others: promise 4 of the design.
TEST_P(AllreduceTest, FusionDoesNotChangeABit) {
  const int ranks = GetParam();
  constexpr size_t kCount = 400000;
  const PerRank<float> values = RandomFloats(ranks, kCount, 3);
  const std::vector<float> expected = SequentialSum(values);
  std::mt19937 random(11);
  for (const size_t largest : {100u, 5000u, 300000u}) {
    std::vector<size_t> cuts = {0, 0};  // an empty span, and more below
    while (cuts.back() < kCount) {
      cuts.push_back(std::min(kCount, cuts.back() + random() % largest));
    }
    Cluster cluster(ranks);
    cluster.Run([&](int rank, Collectives* data) {
      const std::vector<float>& mine = values[rank];
      std::vector<float> other(1 + largest / 3, 1.0f);
      std::vector<float> outputs(kCount);
      std::vector<Span> spans = {InPlace(&other)};
      for (size_t i = 1; i < cuts.size(); ++i) {
        spans.push_back({mine.data() + cuts[i - 1],
                         outputs.data() + cuts[i - 1],
                         static_cast<int64_t>(cuts[i] - cuts[i - 1])});
      }
      Status status = data->Allreduce(cluster.all, spans,
                                      Options(DType::kFloat32, ReduceOp::kSum));
      EXPECT_TRUE(SameBits(outputs, expected)) << largest;
      return status;
    });
  }
}

TEST_P(AllreduceTest, HalvesAreSummedInFloat32AndRoundedOnceInANode) {
  const int ranks = GetParam();
  for (const size_t count : {33u, 300000u}) {
    const PerRank<float> values = RandomFloats(ranks, count, 5);
    PerRank<uint16_t> halves(values.size());
    PerRank<float> exact(values.size());
    for (size_t rank = 0; rank < values.size(); ++rank) {
      for (const float value : values[rank]) {
        halves[rank].push_back(FloatToHalf(value));
        exact[rank].push_back(HalfToFloat(halves[rank].back()));
      }
    }
    // The sum of a node is rounded, after any down-scaling, if it is sent to
    // other nodes.
    std::vector<Floats> sums = SumsOfNodes(exact);
    for (Floats& sum : sums) {
      sum = Divided(std::move(sum), ranks);
      for (float& value : sum) value = HalfToFloat(FloatToHalf(value));
    }
    std::vector<uint16_t> expected;
    for (const float sum : SumOf(sums)) expected.push_back(FloatToHalf(sum));
    const auto results =
        Allreduce(ranks, halves, Options(DType::kFloat16, ReduceOp::kAverage));
    for (const auto& result : results) EXPECT_EQ(result, expected) << count;
  }
}

TEST_P(AllreduceTest, JoinedRanksContributeZerosAndGetNoResult) {
  const int ranks = GetParam();
  for (const size_t count : {10u, 200000u}) {
    PerRank<int32_t> values(static_cast<size_t>(ranks));
    for (int rank = 0; rank < ranks; ++rank) {
      values[rank].assign(count, 1 << rank);
    }
    Cluster cluster(ranks);
    cluster.Run([&](int rank, Collectives* data) {
      std::vector<int32_t>& mine = values[rank];
      const auto half = static_cast<int64_t>(count / 2);
      std::vector<Span> spans = {{mine.data(), mine.data(), half},
                                 {mine.data() + half, mine.data() + half,
                                  static_cast<int64_t>(count) - half}};
      if (rank == 1) {
        for (Span& span : spans) span.input = span.output = nullptr;
      }
      return data->Allreduce(cluster.all, spans,
                             Options(DType::kInt32, ReduceOp::kSum));
    });
    for (int rank = 0; rank < ranks; ++rank) {
      const int32_t expected = rank == 1 ? 2 : (1 << ranks) - 1 - 2;
      EXPECT_EQ(values[rank], std::vector<int32_t>(count, expected));
    }
  }
}

TEST_P(AllreduceTest, OtherOperations) {
  const int ranks = GetParam();
  for (const size_t count : {5u, 100000u}) {
    PerRank<int64_t> values(static_cast<size_t>(ranks));
    for (int rank = 0; rank < ranks; ++rank) {
      values[rank].assign(count, rank - 7);
    }
    int64_t product = 1;
    for (int rank = 0; rank < ranks; ++rank) product *= rank - 7;
    const std::vector<std::pair<ReduceOp, int64_t>> expected = {
        {ReduceOp::kMin, -7},
        {ReduceOp::kMax, ranks - 8},
        {ReduceOp::kProduct, product},
        // The mean is -7 + (ranks - 1) / 2, truncated toward zero.
        {ReduceOp::kAverage, -(15 - ranks) / 2}};
    for (const auto& [op, result] : expected) {
      for (const auto& got :
           Allreduce(ranks, values, Options(DType::kInt64, op))) {
        EXPECT_EQ(got, std::vector<int64_t>(count, result)) << NameOf(op);
      }
    }
  }
}

TEST(CollectivesTest, NothingToReduce) {
  Cluster cluster(3);
  cluster.Run([&](int, Collectives* data) {
    const ReduceOptions sum = Options(DType::kFloat32, ReduceOp::kSum);
    Status none = data->Allreduce(cluster.all, {}, sum);
    if (!none.ok()) return none;
    return data->Allreduce(cluster.all, {Span{}, Span{}}, sum);
  });
}

char ByteOf(int rank, size_t i) {
  return static_cast<char>(i * 31 + static_cast<size_t>(rank) * 101 + 7);
}

std::string Bytes(int rank, size_t count) {
  std::string bytes;
  for (size_t i = 0; i < count; ++i) bytes += ByteOf(rank, i);
  return bytes;
}

TEST(CollectivesTest, AllgatherOfDifferentSizes) {
  const std::vector<std::vector<int64_t>> cases = {{3, 5},
                                                   {0, 0},
                                                   {0, 7, 0},
                                                   {1, 2, 3, 4, 5, 6, 7},
                                                   {70000, 0, 123},
                                                   {65536, 1},
                                                   {65535, 1},
                                                   {0, 300000},
                                                   {4, 100000, 2, 50000, 9}};
  for (const auto& sizes : cases) {
    // The second limit splits all messages.
    for (const size_t cut : {PointToPoint::kMaxBytes, size_t{1000}}) {
      std::string expected;
      for (size_t rank = 0; rank < sizes.size(); ++rank) {
        expected +=
            Bytes(static_cast<int>(rank), static_cast<size_t>(sizes[rank]));
      }
      Cluster cluster(static_cast<int>(sizes.size()), cut);
      cluster.Run([&](int rank, Collectives* data) {
        const std::string mine = Bytes(rank, static_cast<size_t>(sizes[rank]));
        std::string output(expected.size(), '?');
        Status status =
            data->Allgather(cluster.all, mine.empty() ? nullptr : mine.data(),
                            sizes, output.data());
        EXPECT_EQ(output == expected, true) << rank;
        return status;
      });
    }
  }
}

TEST(CollectivesTest, BroadcastFromEveryRank) {
  for (const int ranks : {2, 3, 4, 5, 7}) {
    // Empty; one piece; pieces in a tree; pieces in a chain.
    for (const size_t count :
         {size_t{0}, size_t{1}, size_t{5000}, size_t{1500000},
          (static_cast<size_t>(ranks) << 20) + 3}) {
      for (int root = 0; root < ranks; root += count > 5000 ? 2 : 1) {
        Cluster cluster(ranks, 700000);
        const std::string expected = Bytes(root, count);
        cluster.Run([&](int rank, Collectives* data) {
          std::string mine = rank == root ? expected : std::string(count, '?');
          Status status = data->Broadcast(cluster.all, root, mine.data(),
                                          static_cast<int64_t>(count));
          EXPECT_EQ(mine == expected, true) << rank;
          return status;
        });
      }
    }
  }
}

// Pieces that extend over several tensors are packed, in a tree and in a chain;
// more of them than can be in progress at once.
TEST(CollectivesTest, BroadcastOfAGroup) {
  for (const int ranks : {2, 12}) {
    Cluster cluster(ranks);
    std::vector<size_t> sizes(30, 350001);
    sizes[1] = 0;
    sizes[2] = 1;
    cluster.Run([&](int rank, Collectives* data) {
      std::vector<std::string> mine;
      std::vector<Span> spans;
      for (const size_t size : sizes) mine.emplace_back(size, '?');
      for (size_t i = 0; i < sizes.size(); ++i) {
        if (rank == 1) mine[i] = Bytes(static_cast<int>(i), sizes[i]);
        spans.push_back(
            {mine[i].data(), mine[i].data(), static_cast<int64_t>(sizes[i])});
      }
      // The root is ahead: a piece arrives before its memory is free.
      const auto dawdle = [rank] {
        if (rank != 1)
          std::this_thread::sleep_for(std::chrono::microseconds(200));
        return Status::Ok();
      };
      Status status = data->BroadcastGroup(cluster.all, 1, spans, dawdle);
      for (size_t i = 0; i < sizes.size(); ++i) {
        EXPECT_TRUE(mine[i] == Bytes(static_cast<int>(i), sizes[i])) << i;
      }
      return status;
    });
  }
}

TEST(CollectivesTest, ReturnsControlWhileWaiting) {
  Cluster cluster(2);
  std::atomic<int> looked{0};
  cluster.Run([&](int rank, Collectives* data) {
    // Rank 1 starts after rank 0 has waited.
    while (rank == 1 && looked < 3) std::this_thread::yield();
    std::vector<float> values(100000, 1.0f);
    return data->Allreduce(cluster.all, {InPlace(&values)},
                           Options(DType::kFloat32, ReduceOp::kSum), [&] {
                             if (rank == 0) ++looked;
                             return Status::Ok();
                           });
  });
}

TEST(CollectivesTest, AbandonedOperationReleasesItsMemory) {
  const Collectives::Meanwhile failing = [] { return Aborted("rank 2 died"); };
  for (const size_t count : {1u, 100000u}) {
    for (const bool reduce : {true, false}) {
      Cluster cluster(3);  // rank 2 does not take part
      RunRanks(2, [&](int rank) {
        Collectives* const data = cluster.collectives[rank].get();
        std::vector<float> values(count, 1.0f);
        const Status status =
            reduce ? data->Allreduce(cluster.all, {InPlace(&values)},
                                     Options(DType::kFloat32, ReduceOp::kSum),
                                     failing)
                   : data->Broadcast(cluster.all, 2, values.data(),
                                     static_cast<int64_t>(count), failing);
        EXPECT_EQ(status.code(), StatusCode::kAborted);
        EXPECT_EQ(status.message(), "rank 2 died");
        EXPECT_FALSE(data->memory_in_use());
      });
    }
  }
}

}  // namespace
}  // namespace tf_hvd
