// Collectives of a whole runtime: values, shapes, roots, sizes, orders.
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

// Element i of rank r's tensor: exact in every type used here.
template <typename T>
std::vector<T> Values(int rank, size_t count) {
  std::vector<T> values(count);
  for (size_t i = 0; i < count; ++i) {
    values[i] = static_cast<T>(static_cast<size_t>(rank) + i % 100);
  }
  return values;
}

template <typename T>
std::vector<T> SumOfValues(int size, size_t count) {
  std::vector<T> sum(count);
  for (size_t i = 0; i < count; ++i) {
    sum[i] =
        static_cast<T>(SumOfRanks(size) + size * static_cast<int64_t>(i % 100));
  }
  return sum;
}

TEST_P(CollectivesTest, AllreduceOfAnySize) {
  Job job(GetParam());
  job.Run([](Rank& self) {
    for (const size_t count : {size_t{0}, size_t{1}, size_t{7}, size_t{1000},
                               size_t{16384}, size_t{16385}, size_t{60000}}) {
      std::vector<float> data = Values<float>(self.rank(), count);
      const std::string name = "n" + std::to_string(count);
      ASSERT_TRUE(self.Allreduce(name, &data).status().ok());
      EXPECT_EQ(data, SumOfValues<float>(self.size(), count)) << name;
    }
  });
}

// Several MiB, in pieces, while small ones go by.
TEST(Collectives, LargeAmongSmall) {
  Job job({1, 2});
  job.Run([](Rank& self) {
    constexpr size_t kLarge = 1'200'000;
    std::vector<float> large = Values<float>(self.rank(), kLarge);
    const Pending one = self.Allreduce("large", &large);
    for (int i = 0; i < 20; ++i) {
      std::vector<float> small = Values<float>(self.rank(), 10);
      ASSERT_TRUE(self.Allreduce("small", &small).status().ok());
      EXPECT_EQ(small, SumOfValues<float>(self.size(), 10));
    }
    ASSERT_TRUE(one.status().ok());
    EXPECT_EQ(large, SumOfValues<float>(self.size(), kLarge));
  });
}

TEST_P(CollectivesTest, EveryReduceOperationAndScale) {
  Job job(GetParam());
  job.Run([](Rank& self) {
    const double size = self.size();
    const double sum = static_cast<double>(SumOfRanks(self.size())) + size;
    double product = 1;
    for (int i = 1; i <= self.size(); ++i) product *= i;
    struct Row {
      ReduceOp op;
      double prescale;
      double postscale;
      double expected;
    };
    const Row rows[] = {{ReduceOp::kSum, 1, 1, sum},
                        {ReduceOp::kSum, 2, 0.25, sum / 2},
                        {ReduceOp::kAverage, size, 1, sum},
                        {ReduceOp::kMin, 1, 1, 1},
                        {ReduceOp::kMax, 1, 2, size * 2},
                        {ReduceOp::kProduct, 1, 1, product}};
    int number = 0;
    for (const Row& row : rows) {
      CallOptions options;
      options.op = row.op;
      options.prescale = row.prescale;
      options.postscale = row.postscale;
      std::vector<double> data = {self.rank() + 1.0};
      const std::string name = "op" + std::to_string(number++);
      ASSERT_TRUE(self.Allreduce(name, &data, options).status().ok());
      EXPECT_EQ(data[0], row.expected) << name;
    }
  });
}

// Rank r gives r rows in one call, and r % 2 rows in the other.
TEST_P(CollectivesTest, AllgatherOfDifferentFirstDimensions) {
  Job job(GetParam());
  job.Run([](Rank& self) {
    for (const int modulus : {100, 2, 1}) {
      std::vector<int64_t> dims;
      std::vector<int32_t> all;
      for (int r = 0; r < self.size(); ++r) {
        dims.push_back(r % modulus);
        for (int i = 0; i < 3 * (r % modulus); ++i) all.push_back(r * 1000 + i);
      }
      const int64_t rows = dims[static_cast<size_t>(self.rank())];
      std::vector<int32_t> mine;
      for (int i = 0; i < 3 * rows; ++i) mine.push_back(self.rank() * 1000 + i);
      CallOptions options;
      options.shape = {rows, 3};
      const Pending pending =
          self.Allgather("rows" + std::to_string(modulus), mine, options);
      ASSERT_TRUE(pending.status().ok()) << pending.status().message();
      EXPECT_EQ(pending.gathered->first_dims, dims);
      EXPECT_EQ(pending.gathered->As<int32_t>(), all);
    }
  });
}

TEST_P(CollectivesTest, AllgatherOfRowsWithoutElements) {
  Job job(GetParam());
  job.Run([](Rank& self) {
    CallOptions options;
    options.shape = {self.rank() + 1, 0, 4};
    const Pending pending =
        self.Allgather("empty", std::vector<float>(), options);
    ASSERT_TRUE(pending.status().ok());
    EXPECT_EQ(pending.gathered->first_dims.size(),
              static_cast<size_t>(self.size()));
    EXPECT_EQ(pending.gathered->first_dims.back(), self.size());
    EXPECT_TRUE(pending.gathered->bytes.empty());
  });
}

TEST_P(CollectivesTest, BroadcastFromEachRoot) {
  Job job(GetParam());
  job.Run([](Rank& self) {
    for (int root = 0; root < self.size(); ++root) {
      for (const size_t count : {size_t{0}, size_t{3}, size_t{40'000}}) {
        const std::string name =
            std::to_string(root) + "x" + std::to_string(count);
        std::vector<int32_t> data(count, self.rank());
        ASSERT_TRUE(self.Broadcast(name, root, &data).status().ok());
        EXPECT_EQ(data, std::vector<int32_t>(count, root)) << name;
        const std::vector<int32_t> mine(count, self.rank());
        std::vector<int32_t> input = mine;
        std::vector<int32_t> output(count, -1);
        ASSERT_TRUE(self.Broadcast(name + "o", root, &input, {}, &output)
                        .status()
                        .ok());
        EXPECT_EQ(input, mine) << name;
        EXPECT_EQ(output, std::vector<int32_t>(count, root)) << name;
      }
    }
  });
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

// Rank r sends (r + i) % 3 rows to rank i.
TEST_P(CollectivesTest, AlltoallOfDifferentSplits) {
  Job job(GetParam());
  job.Run([](Rank& self) {
    const auto value = [](int from, int to) { return from * 100 + to; };
    for (int round = 0; round < 3; ++round) {
      std::vector<int64_t> splits;
      std::vector<int64_t> rows;
      std::vector<int32_t> input;
      std::vector<int32_t> expected;
      for (int other = 0; other < self.size(); ++other) {
        const auto count = static_cast<size_t>((self.rank() + other) % 3);
        splits.push_back(static_cast<int64_t>(count));
        rows.push_back(static_cast<int64_t>(count));  // the rule is symmetric
        input.insert(input.end(), count, value(self.rank(), other));
        expected.insert(expected.end(), count, value(other, self.rank()));
      }
      const Pending all = self.Alltoall("all", input, splits);
      ASSERT_TRUE(all.status().ok()) << all.status().message();
      EXPECT_EQ(all.gathered->first_dims, rows);
      EXPECT_EQ(all.gathered->As<int32_t>(), expected);
    }
  });
}

// size * 2 + 1 rows: the first rank gets three.
TEST_P(CollectivesTest, ReducescatterGivesTheRestToTheFirst) {
  Job job(GetParam());
  job.Run([](Rank& self) {
    const auto size = static_cast<size_t>(self.size());
    const std::vector<int64_t> input =
        Values<int64_t>(self.rank(), size * 2 + 1);
    const std::vector<int64_t> sum =
        SumOfValues<int64_t>(self.size(), input.size());
    const size_t mine = self.rank() == 0 ? 3 : 2;
    const size_t before =
        self.rank() == 0 ? 0 : static_cast<size_t>(self.rank()) * 2 + 1;
    std::vector<int64_t> part(mine, -1);
    ASSERT_TRUE(self.Reducescatter("s", input, &part).status().ok());
    EXPECT_EQ(part, std::vector<int64_t>(
                        sum.begin() + static_cast<long>(before),
                        sum.begin() + static_cast<long>(before + mine)));
  });
}

// A scalar has no dimensions but one element.
TEST_P(CollectivesTest, ScalarAllreduceAndBroadcast) {
  Job job(GetParam());
  job.Run([](Rank& self) {
    std::vector<float> data = {static_cast<float>(self.rank())};
    Entry entry = Rank::Plain(OpKind::kAllreduce, "scalar", kWorldSet);
    entry.request.tensors.push_back({DType::kFloat32, {}});
    entry.tensors.push_back({data.data(), data.data(), 1});
    ASSERT_TRUE(self.Submit(std::move(entry)).status().ok());
    EXPECT_EQ(data[0], static_cast<float>(SumOfRanks(self.size())));
  });
}

// A group is one request; its tensors may be of several types.
TEST_P(CollectivesTest, GroupOfTensors) {
  Job job(GetParam());
  job.Run([](Rank& self) {
    std::vector<float> floats = Values<float>(self.rank(), 1000);
    std::vector<int32_t> ints = Values<int32_t>(self.rank(), 10);
    std::vector<float> more = Values<float>(self.rank(), 1);
    Entry entry = Rank::Plain(OpKind::kAllreduce, "group", kWorldSet);
    entry.request.tensors = {{DType::kFloat32, {1000}},
                             {DType::kInt32, {10}},
                             {DType::kFloat32, {1}}};
    entry.tensors = {{floats.data(), floats.data(), 1000},
                     {ints.data(), ints.data(), 10},
                     {more.data(), more.data(), 1}};
    ASSERT_TRUE(self.Submit(std::move(entry)).status().ok());
    EXPECT_EQ(floats, SumOfValues<float>(self.size(), 1000));
    EXPECT_EQ(ints, SumOfValues<int32_t>(self.size(), 10));
    EXPECT_EQ(more, SumOfValues<float>(self.size(), 1));
  });
}

// Many names in requests, in another order on each rank, from several threads.
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
            mine = Values<float>(self.rank(), static_cast<size_t>(i));
            pending.push_back(self.Allreduce(
                "t" + std::to_string(t) + "." + std::to_string(i), &mine));
          }
          for (const Pending& one : pending) {
            ASSERT_TRUE(one.status().ok()) << one.status().message();
          }
          for (size_t i = 0; i < kNames; ++i) {
            EXPECT_EQ(data[i], SumOfValues<float>(self.size(), i));
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
      for (int i = 0; i < 20; ++i) {
        const auto at = static_cast<size_t>(i);
        const std::string name = std::to_string(i);
        sums[at] = Values<float>(self.rank(), 100 * at);
        copies[at] = Values<float>(self.rank(), 10 * at);
        pending.push_back(self.Allreduce("sum" + name, &sums[at]));
        pending.push_back(
            self.Broadcast("copy" + name, i % self.size(), &copies[at]));
        gathers.push_back(self.Allgather(
            "rows" + name, std::vector<int32_t>(1, self.rank() + i)));
      }
      for (const Pending& one : pending) ASSERT_TRUE(one.status().ok());
      for (int i = 0; i < 20; ++i) {
        const auto at = static_cast<size_t>(i);
        EXPECT_EQ(sums[at], SumOfValues<float>(self.size(), 100 * at));
        EXPECT_EQ(copies[at], Values<float>(i % self.size(), 10 * at));
        ASSERT_TRUE(gathers[at].status().ok());
        std::vector<int32_t> expected(static_cast<size_t>(self.size()));
        std::iota(expected.begin(), expected.end(), i);
        EXPECT_EQ(gathers[at].gathered->As<int32_t>(), expected);
      }
    });
  }
}

}  // namespace
}  // namespace tf_hvd
