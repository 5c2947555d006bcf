// Process sets: added and removed while the job runs, overlapping, in use at
// the same time.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "runtime/api/set_calls.h"
#include "tests/runtime/job.h"

namespace tf_hvd {
namespace {

class SetsTest : public OnEachTree {};
INSTANTIATE_TEST_SUITE_P(Trees, SetsTest, ::testing::ValuesIn(AllNodes()),
                         TreeName);

int64_t Sum(const std::vector<int32_t>& ranks) {
  return std::accumulate(ranks.begin(), ranks.end(), int64_t{0});
}

bool IsIn(int rank, const std::vector<int32_t>& ranks) {
  return std::binary_search(ranks.begin(), ranks.end(), rank);
}

// All sets of at least one rank: {0}, {1}, {0, 1}, ...
std::vector<std::vector<int32_t>> AllSubsets(int size) {
  std::vector<std::vector<int32_t>> subsets;
  for (int bits = 1; bits < 1 << size; ++bits) {
    subsets.emplace_back();
    for (int rank = 0; rank < size; ++rank) {
      if ((bits >> rank & 1) != 0) subsets.back().push_back(rank);
    }
  }
  return subsets;
}

TEST_P(SetsTest, AllOverlapsConcurrently) {
  Job job(GetParam());
  const auto subsets = AllSubsets(job.size());
  job.Run([&](Rank& self) {
    std::vector<int32_t> numbers;
    for (size_t i = 0; i < subsets.size(); ++i) {
      const Pending added = self.AddSet("s" + std::to_string(i), subsets[i]);
      ASSERT_TRUE(added.status().ok()) << added.status().message();
      numbers.push_back(added.value());
      EXPECT_EQ(numbers.back(), static_cast<int32_t>(i) + 1);
      EXPECT_EQ(*self.runtime()->SetRanks(numbers.back()),
                std::vector<int>(subsets[i].begin(), subsets[i].end()));
    }
    for (int round = 0; round < 3; ++round) {
      std::vector<std::vector<int64_t>> data(subsets.size());
      std::vector<Pending> pending(subsets.size());
      for (size_t i = 0; i < subsets.size(); ++i) {
        // Every rank in a different order, the same name in all sets.
        const size_t at =
            (i * 7 + static_cast<size_t>(self.rank()) * 5) % subsets.size();
        if (!IsIn(self.rank(), subsets[at]) || !data[at].empty()) continue;
        CallOptions options;
        options.set = numbers[at];
        data[at].assign(at % 3 == 0 ? 20000 : 2, self.rank());
        pending[at] = self.Allreduce("same name", &data[at], options);
      }
      for (size_t i = 0; i < subsets.size(); ++i) {
        if (!IsIn(self.rank(), subsets[i])) continue;
        if (data[i].empty()) {  // skipped by the step of 7
          CallOptions options;
          options.set = numbers[i];
          data[i].assign(i % 3 == 0 ? 20000 : 2, self.rank());
          pending[i] = self.Allreduce("same name", &data[i], options);
        }
      }
      for (size_t i = 0; i < subsets.size(); ++i) {
        if (!IsIn(self.rank(), subsets[i])) continue;
        ASSERT_TRUE(pending[i].status().ok()) << pending[i].status().message();
        EXPECT_EQ(data[i], std::vector<int64_t>(i % 3 == 0 ? 20000 : 2,
                                                Sum(subsets[i])));
      }
    }
  });
}

TEST_P(SetsTest, InvalidRemovalsFailOnAllRanks) {
  Job job(GetParam());
  job.Run([](Rank& self) {
    for (const int32_t set : {0, 1, -5}) {
      const Status status = self.RemoveSet("wrong", set).status();
      EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition) << set;
    }
    EXPECT_EQ(self.AddSet("right", {0}).value(), 1);
    EXPECT_TRUE(self.Barrier("world still there").status().ok());
  });
}

TEST_P(SetsTest, UnknownSetsAndSetsOfOtherRanks) {
  Job job(GetParam());
  job.Run([](Rank& self) {
    ASSERT_EQ(self.AddSet("s", {0}).value(), 1);
    std::vector<float> data = {1};
    CallOptions options;
    options.set = 9;
    Status status = self.Allreduce("x", &data, options).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("9 does not exist"), std::string::npos);
    if (self.rank() == 0) return;
    options.set = 1;
    status = self.Allreduce("x", &data, options).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("is not a member of process set 1"),
              std::string::npos);
  });
}

TEST_P(SetsTest, InitsSetsMustAgree) {
  Job job(GetParam());
  job.Run([](Rank& self) {
    Runtime* const runtime = self.runtime();
    EXPECT_TRUE(AgreeOnSets(runtime, {}).ok());
    EXPECT_TRUE(AgreeOnSets(runtime, {0, kSetEnd, kSetEnd}).ok());
    if (self.size() == 1) return;
    const bool first = self.rank() == 0;
    const Status status = AgreeOnSets(
        runtime, {first ? kCommunicatorSet : 0, kSetEnd, 1, kSetEnd});
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
    EXPECT_NE(status.message().find(
                  "rank 0 has process sets [a communicator's ranks], [1], "
                  "rank 1 has process sets [0], [1]"),
              std::string::npos)
        << status.message();
    EXPECT_TRUE(AgreeOnSets(runtime, {}).ok());
  });
}

TEST_P(SetsTest, CommunicatorOnOneRankOnlyIsAMismatch) {
  Job job(GetParam());
  if (job.size() == 1) return;
  job.Run([](Rank& self) {
    std::vector<std::vector<int32_t>> all;
    int32_t number = -1;
    const Status status = self.rank() == 0
                              ? GatherRanks(self.runtime(), {0}, &all)
                              : AddSet(self.runtime(), {0}, &number);
    EXPECT_NE(status.message().find(
                  "rank 0 has allgather, rank 1 has add_process_set"),
              std::string::npos)
        << status.message();
  });
}

TEST(SetsEndTest, AfterTheEndEveryCallFails) {
  Job job({2});
  job.Run([](Rank& self) {
    self.runtime()->Shutdown("test", false);
    int32_t number = -1;
    std::vector<std::vector<int32_t>> all;
    Runtime* const runtime = self.runtime();
    EXPECT_EQ(AgreeOnSets(runtime, {}).code(), StatusCode::kAborted);
    EXPECT_EQ(AddSet(runtime, {0}, &number).code(), StatusCode::kAborted);
    EXPECT_EQ(RemoveSet(runtime, 1).code(), StatusCode::kAborted);
    EXPECT_EQ(GatherRanks(runtime, {0}, &all).code(), StatusCode::kAborted);
  });
}

}  // namespace
}  // namespace tf_hvd
