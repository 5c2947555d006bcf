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

// Average includes the joined ranks; large and small, fused or not.
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

// Requests that are still pending when a rank joins are executed first.
TEST_P(JoinTest, RequestsPendingAtJoin) {
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

TEST_P(JoinTest, MismatchAmongRunningRanks) {
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
