// Collectives of a whole runtime: orders, threads, many in flight. The results
// of each kind for all shapes are tested with the backends, and in
// tests/python.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/runtime/job.h"

namespace tf_hvd {
namespace {

class CollectivesTest : public OnEachTree {};
INSTANTIATE_TEST_SUITE_P(Trees, CollectivesTest,
                         ::testing::ValuesIn(AllNodes()), TreeName);

int64_t SumOfRanks(int size) { return int64_t{size} * (size - 1) / 2; }

// Element i of rank r's tensor.
std::vector<float> Values(int rank, size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    values[i] = static_cast<float>(static_cast<size_t>(rank) + i % 100);
  }
  return values;
}

std::vector<float> SumOfValues(int size, size_t count) {
  std::vector<float> sum(count);
  for (size_t i = 0; i < count; ++i) {
    sum[i] = static_cast<float>(SumOfRanks(size) +
                                size * static_cast<int64_t>(i % 100));
  }
  return sum;
}

TEST_P(CollectivesTest, BarrierWaitsForAll) {
  Job job(GetParam());
  std::atomic<int> arrived{0};
  job.Run([&](Rank& self) {
    for (int round = 1; round <= 20; ++round) {
      ++arrived;
      ASSERT_TRUE(self.Barrier("b").status().ok());
      EXPECT_GE(arrived, round * self.size());
    }
  });
}

// Many names, in a different order on each rank, from several threads.
TEST_P(CollectivesTest, AnyOrderFromSeveralThreads) {
  constexpr int kThreads = 3;
  constexpr int kNames = 60;
  Job job(GetParam());
  job.Run([](Rank& self) {
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&self, t] {
        std::vector<int> order(kNames);
        std::iota(order.begin(), order.end(), 0);
        std::shuffle(order.begin(), order.end(),
                     std::mt19937(static_cast<unsigned>(self.rank())));
        for (int round = 0; round < 4; ++round) {
          std::vector<std::vector<float>> data(kNames);
          std::vector<Pending> pending;
          for (const int i : order) {
            auto& mine = data[static_cast<size_t>(i)];
            mine = Values(self.rank(), static_cast<size_t>(i));
            pending.push_back(self.Allreduce(
                "t" + std::to_string(t) + "." + std::to_string(i), &mine));
          }
          for (const Pending& one : pending) {
            ASSERT_TRUE(one.status().ok()) << one.status().message();
          }
          for (size_t i = 0; i < kNames; ++i) {
            EXPECT_EQ(data[i], SumOfValues(self.size(), i));
          }
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
}

// All kinds at once, with and without fusion: the same results.
TEST_P(CollectivesTest, AllKindsInFlightWithAndWithoutFusion) {
  for (const int64_t threshold :
       {int64_t{0}, int64_t{1000}, int64_t{1} << 26}) {
    Config config;
    config.fusion_threshold = threshold;
    Job job(GetParam(), config);
    job.Run([](Rank& self) {
      std::vector<Pending> pending;
      std::vector<std::vector<float>> sums(20);
      std::vector<std::vector<float>> copies(20);
      std::vector<Pending> gathers;
      std::vector<Pending> exchanges;
      std::vector<std::vector<float>> parts(20);
      const auto ranks = static_cast<size_t>(self.size());
      for (int i = 0; i < 20; ++i) {
        const auto at = static_cast<size_t>(i);
        const std::string name = std::to_string(i);
        sums[at] = Values(self.rank(), 100 * at);
        copies[at] = Values(self.rank(), 10 * at);
        pending.push_back(self.Allreduce("sum" + name, &sums[at]));
        pending.push_back(
            self.Broadcast("copy" + name, i % self.size(), &copies[at]));
        gathers.push_back(self.Allgather(
            "rows" + name, std::vector<int32_t>(1, self.rank() + i)));
        // Rank r sends each rank r rows, and has one of the sums.
        exchanges.push_back(self.Alltoall(
            "parts" + name,
            std::vector<int32_t>(ranks * static_cast<size_t>(self.rank()), i),
            std::vector<int64_t>(ranks, self.rank())));
        parts[at].resize(1);
        pending.push_back(self.Reducescatter(
            "part" + name, Values(self.rank(), ranks), &parts[at]));
      }
      for (const Pending& one : pending) ASSERT_TRUE(one.status().ok());
      for (int i = 0; i < 20; ++i) {
        const auto at = static_cast<size_t>(i);
        EXPECT_EQ(sums[at], SumOfValues(self.size(), 100 * at));
        EXPECT_EQ(copies[at], Values(i % self.size(), 10 * at));
        ASSERT_TRUE(gathers[at].status().ok());
        std::vector<int32_t> expected(static_cast<size_t>(self.size()));
        std::iota(expected.begin(), expected.end(), i);
        EXPECT_EQ(gathers[at].gathered->As<int32_t>(), expected);
        ASSERT_TRUE(exchanges[at].status().ok());
        EXPECT_EQ(exchanges[at].gathered->As<int32_t>(),
                  std::vector<int32_t>(
                      static_cast<size_t>(SumOfRanks(self.size())), i));
        EXPECT_EQ(
            parts[at][0],
            SumOfValues(self.size(), ranks)[static_cast<size_t>(self.rank())]);
      }
    });
  }
}

// An error among many requests does not affect the others.
TEST_P(CollectivesTest, OneOfManyFails) {
  Job job(GetParam());
  if (job.size() == 1) return;
  job.Run([](Rank& self) {
    for (int round = 0; round < 10; ++round) {
      std::vector<std::vector<int64_t>> data(40);
      std::vector<Pending> pending;
      for (size_t i = 0; i < data.size(); ++i) {
        const bool wrong = i % 10 == 3 && self.rank() == self.size() - 1;
        data[i].assign(wrong ? 7 : 5, static_cast<int64_t>(i));
        pending.push_back(
            self.Allreduce(std::string("g") + std::to_string(i), &data[i]));
      }
      for (size_t i = 0; i < data.size(); ++i) {
        const bool fails = i % 10 == 3;
        EXPECT_EQ(pending[i].status().ok(), !fails);
        if (fails) continue;
        EXPECT_EQ(data[i], std::vector<int64_t>(
                               5, static_cast<int64_t>(i) * self.size()));
      }
    }
  });
}

}  // namespace
}  // namespace tf_hvd
