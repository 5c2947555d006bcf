// Join: ranks that run out of data earlier than others.
#include <gtest/gtest.h>

#include <future>
#include <string>
#include <vector>

#include "tests/runtime/job.h"

namespace tf_hvd {
namespace {

class JoinTest : public OnEachTree {};
INSTANTIATE_TEST_SUITE_P(Trees, JoinTest, ::testing::ValuesIn(AllNodes()),
                         TreeName);

// Rank r has r + 1 steps. Step s is summed over the ranks that still run.
TEST_P(JoinTest, JoinedRanksTakePartWithZeros) {
  Job job(GetParam());
  job.Run([](Rank& self) {
    for (int epoch = 0; epoch < 3; ++epoch) {
      for (int step = 0; step <= self.rank(); ++step) {
        std::vector<int64_t> data = {100 + self.rank(), 1};
        const Pending sum = self.Allreduce("step", &data);
        ASSERT_TRUE(sum.status().ok()) << sum.status().message();
        int64_t expected = 0;
        for (int r = step; r < self.size(); ++r) expected += 100 + r;
        EXPECT_EQ(data, (std::vector<int64_t>{expected, self.size() - step}));
      }
      const Pending join = self.Join();
      ASSERT_TRUE(join.status().ok()) << join.status().message();
      EXPECT_EQ(join.value(), self.size() - 1);  // it certainly was the last
    }
  });
}

// An optimizer's step is its number of updates, of which a rank that joins
// early has made fewer: after the join this is no mismatch, and a step that one
// rank repeats still is.
TEST_P(JoinTest, StepsCountFromTheJoin) {
  Job job(GetParam());
  if (job.size() == 1) return;
  job.Run([](Rank& self) {
    int64_t updates = 0;
    const auto step = [&](int64_t number) {
      std::vector<int64_t> data = {1};
      CallOptions options;
      options.step = number;
      return self.Allreduce("step", &data, options).status();
    };
    for (int epoch = 0; epoch < 3; ++epoch) {
      for (int i = 0; i <= 2 * self.rank(); ++i) {
        const Status status = step(updates++);
        ASSERT_TRUE(status.ok()) << status.message();
      }
      ASSERT_TRUE(self.Join().status().ok());
    }
    ASSERT_TRUE(step(updates++).ok());
    const bool repeats = self.rank() == self.size() - 1;
    EXPECT_EQ(step(repeats ? updates - 1 : updates).code(),
              StatusCode::kFailedPrecondition);
  });
}

TEST_P(JoinTest, AllJoinAtOnceAgreeOnTheLast) {
  Job job(GetParam());
  std::vector<int32_t> last(static_cast<size_t>(job.size()));
  for (int round = 0; round < 20; ++round) {
    job.Run([&](Rank& self) {
      const Pending join = self.Join();
      ASSERT_TRUE(join.status().ok());
      last[static_cast<size_t>(self.rank())] = join.value();
    });
    for (const int32_t rank : last) {
      EXPECT_EQ(rank, last[0]);
      EXPECT_LT(rank, job.size());
    }
  }
}

// Average counts the joined ranks too; large and small, fused or not.
TEST_P(JoinTest, ManyRequestsAfterAJoin) {
  Job job(GetParam());
  if (job.size() == 1) return;
  job.Run([](Rank& self) {
    if (self.rank() == 0) {
      EXPECT_TRUE(self.Join().status().ok());
      return;
    }
    std::vector<std::vector<double>> data(30);
    std::vector<Pending> pending;
    CallOptions average;
    average.op = ReduceOp::kAverage;
    for (size_t i = 0; i < data.size(); ++i) {
      data[i].assign(i * i * 20, self.size());
      pending.push_back(
          self.Allreduce("m" + std::to_string(i), &data[i], average));
    }
    for (size_t i = 0; i < data.size(); ++i) {
      ASSERT_TRUE(pending[i].status().ok());
      EXPECT_EQ(data[i], std::vector<double>(i * i * 20, self.size() - 1));
    }
    EXPECT_TRUE(self.Barrier("b").status().ok());
    EXPECT_TRUE(self.Join().status().ok());
  });
}

TEST_P(JoinTest, AllgatherAfterAJoinHasNoRowsOfTheJoined) {
  Job job(GetParam());
  if (job.size() == 1) return;
  job.Run([](Rank& self) {
    if (self.rank() > 0) {
      for (const size_t rows : {size_t{1}, size_t{30000}, size_t{0}}) {
        const std::vector<int64_t> mine(rows, self.rank());
        const Pending gather = self.Allgather("a", mine);
        ASSERT_TRUE(gather.status().ok()) << gather.status().message();
        std::vector<int64_t> all;
        for (int r = 1; r < self.size(); ++r) all.insert(all.end(), rows, r);
        EXPECT_EQ(gather.gathered->first_dims[0], 0);
        EXPECT_EQ(gather.gathered->As<int64_t>(), all);
      }
    }
    EXPECT_TRUE(self.Join().status().ok());
  });
}

// With the same text on all ranks; what is correct works before and after.
TEST_P(JoinTest, WhatNeedsEveryRankFailsAfterAJoin) {
  Job job(GetParam());
  if (job.size() == 1) return;
  job.Run([](Rank& self) {
    const auto size = static_cast<size_t>(self.size());
    std::vector<float> data(size, 1);
    std::vector<float> part(1);
    if (self.rank() > 0) {
      std::vector<Pending> wrong = {
          self.Alltoall("all", data, std::vector<int64_t>(size, 1)),
          self.Reducescatter("scatter", data, &part),
          self.Broadcast("copy", 1, &data)};
      const char* names[] = {"all", "scatter", "copy"};
      for (size_t i = 0; i < wrong.size(); ++i) {
        const Status status = wrong[i].status();
        EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
        EXPECT_EQ(status.message(),
                  "'" + std::string(names[i]) +
                      "' cannot run: a rank has already joined, and only "
                      "allreduce, allgather and barrier go on without it");
      }
      EXPECT_TRUE(self.Allreduce("sum", &data).status().ok());
      EXPECT_EQ(data, std::vector<float>(size, self.size() - 1.0f));
    }
    EXPECT_TRUE(self.Join().status().ok());
    data.assign(size, 1);
    ASSERT_TRUE(self.Reducescatter("scatter", data, &part).status().ok());
    EXPECT_EQ(part[0], static_cast<float>(self.size()));
    const Pending all =
        self.Alltoall("all", data, std::vector<int64_t>(size, 1));
    ASSERT_TRUE(all.status().ok());
    EXPECT_EQ(all.gathered->As<float>(), data);
  });
}

TEST_P(JoinTest, NoCallsBetweenJoinAndItsReturn) {
  Job job(GetParam());
  if (job.size() == 1) return;
  std::promise<void> tried;
  std::shared_future<void> others_may_join = tried.get_future().share();
  job.Run([&](Rank& self) {
    if (self.rank() > 0) {
      others_may_join.wait();
      EXPECT_TRUE(self.Join().status().ok());
      return;
    }
    const Pending join = self.Join();
    std::vector<float> data = {1};
    const Status status = self.Allreduce("early", &data).status();
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
    EXPECT_NE(status.message().find("has joined"), std::string::npos);
    EXPECT_NE(status.message().find("'early'"), std::string::npos);
    EXPECT_FALSE(self.Join().status().ok());
    tried.set_value();
    EXPECT_TRUE(join.status().ok());
  });
}

// Requests that are still pending when a rank joins come first.
TEST_P(JoinTest, OwnRequestsPendingAtJoin) {
  Job job(GetParam());
  job.Run([](Rank& self) {
    for (int round = 0; round < 5; ++round) {
      std::vector<std::vector<int32_t>> data(10);
      std::vector<Pending> pending;
      for (size_t i = 0; i < data.size(); ++i) {
        data[i] = {1};
        pending.push_back(self.Allreduce("p" + std::to_string(i), &data[i]));
      }
      const Pending join = self.Join();
      for (size_t i = 0; i < data.size(); ++i) {
        ASSERT_TRUE(pending[i].status().ok()) << pending[i].status().message();
        EXPECT_EQ(data[i][0], self.size());
      }
      EXPECT_TRUE(join.status().ok());
    }
  });
}

TEST_P(JoinTest, MismatchAmongThoseThatStillRun) {
  Job job(GetParam());
  if (job.size() < 3) return;
  job.Run([](Rank& self) {
    if (self.rank() > 0) {
      std::vector<float> data(self.rank() == 1 ? 2 : 3, 1);
      const Status status = self.Allreduce("x", &data).status();
      EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
      EXPECT_NE(status.message().find("rank 1 has float32[2], rank 2 has "
                                      "float32[3]"),
                std::string::npos)
          << status.message();
    }
    EXPECT_TRUE(self.Join().status().ok());
  });
}

}  // namespace
}  // namespace tf_hvd
