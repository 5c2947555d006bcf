// Process sets: added and removed while the job runs, overlapping, in use at
// the same time.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

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

TEST_P(SetsTest, EveryOverlapAtOnce) {
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
        // Every rank in another order, the same name in all sets.
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
        if (data[i].empty()) {  // the step of 7 has left it out
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

TEST_P(SetsTest, AllKindsInASet) {
  Job job(GetParam());
  job.Run([](Rank& self) {
    // The upper half, the last rank at least.
    std::vector<int32_t> ranks;
    for (int r = self.size() / 2; r < self.size(); ++r) ranks.push_back(r);
    const Pending added = self.AddSet("upper", ranks);
    ASSERT_TRUE(added.status().ok());
    if (!IsIn(self.rank(), ranks)) return;
    CallOptions in_set;
    in_set.set = added.value();
    std::vector<int32_t> data = {self.rank()};
    ASSERT_TRUE(self.Broadcast("b", ranks.back(), &data, in_set).status().ok());
    EXPECT_EQ(data[0], ranks.back());
    const Pending gather =
        self.Allgather("a", std::vector<int32_t>{self.rank()}, in_set);
    ASSERT_TRUE(gather.status().ok());
    EXPECT_EQ(gather.gathered->As<int32_t>(), ranks);
    EXPECT_TRUE(self.Barrier("c", in_set.set).status().ok());
    const Pending join = self.Join(in_set.set);
    ASSERT_TRUE(join.status().ok());
    EXPECT_TRUE(IsIn(join.value(), ranks));
  });
}

// Every call looks up its set's members: all get one list.
TEST_P(SetsTest, MembersAreNotCopied) {
  Job job(GetParam());
  job.Run([](Rank& self) {
    const Pending added = self.AddSet("add", {0});
    ASSERT_TRUE(added.status().ok());
    for (const int32_t set : {kWorldSet, added.value()}) {
      const SetMembers members = self.runtime()->SetRanks(set);
      ASSERT_NE(members, nullptr);
      EXPECT_EQ(self.runtime()->SetRanks(set).get(), members.get());
    }
  });
}

TEST_P(SetsTest, NumbersAreNotUsedAgain) {
  Job job(GetParam());
  job.Run([](Rank& self) {
    for (int32_t round = 1; round <= 5; ++round) {
      const Pending added = self.AddSet("add", {0});
      ASSERT_TRUE(added.status().ok());
      EXPECT_EQ(added.value(), round);
      ASSERT_TRUE(self.RemoveSet("remove", added.value()).status().ok());
      EXPECT_EQ(self.runtime()->SetRanks(added.value()), nullptr);
      if (self.rank() != 0) continue;
      std::vector<float> data = {1};
      CallOptions options;
      options.set = added.value();
      const Status status = self.Allreduce("x", &data, options).status();
      EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
      EXPECT_NE(status.message().find("was removed"), std::string::npos);
    }
  });
}

// Several added in one batch, in another order than that of their names.
TEST_P(SetsTest, AddedTogetherGetDifferentNumbers) {
  Job job(GetParam());
  job.Run([](Rank& self) {
    int32_t highest = 0;
    for (int round = 0; round < 10; ++round) {
      std::vector<Pending> pending;
      // "z" is agreed more often than the others and gets a slot first.
      if (round % 2 == 0) pending.push_back(self.AddSet("z", {0}));
      for (const char* name : {"z1", "a", "m"}) {
        pending.push_back(
            self.AddSet(std::string(name) + (round % 3 == 0 ? "" : "x"), {0}));
      }
      std::vector<int32_t> numbers;
      for (const Pending& one : pending) {
        ASSERT_TRUE(one.status().ok());
        numbers.push_back(one.value());
      }
      std::sort(numbers.begin(), numbers.end());
      for (const int32_t number : numbers) EXPECT_EQ(number, ++highest);
    }
  });
}

TEST_P(SetsTest, WrongRemovalsFailEverywhereAlike) {
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

TEST_P(SetsTest, DifferentRanksAreAMismatch) {
  Job job(GetParam());
  if (job.size() == 1) return;
  job.Run([](Rank& self) {
    const Status status = self.AddSet("s", {self.rank() == 0 ? 0 : 1}).status();
    EXPECT_EQ(status.message(),
              "mismatch in add_process_set 's': rank 0 has ranks 0, rank 1 "
              "has ranks 1; process sets must be equal on all ranks");
  });
}

TEST_P(SetsTest, UnknownSetsAndSetsOfOthers) {
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

// What waits in a set when it is removed fails; nobody hangs.
TEST_P(SetsTest, RemovedWhileARequestIsPending) {
  Job job(GetParam());
  if (job.size() == 1) return;
  job.Run([](Rank& self) {
    std::vector<int32_t> ranks(static_cast<size_t>(self.size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    const int32_t set = self.AddSet("all", ranks).value();
    std::vector<float> data = {1};
    CallOptions options;
    options.set = set;
    Pending pending;
    if (self.rank() > 0) pending = self.Allreduce("x", &data, options);
    ASSERT_TRUE(self.RemoveSet("remove", set).status().ok());
    if (self.rank() == 0) return;
    EXPECT_EQ(pending.status().code(), StatusCode::kFailedPrecondition);
    EXPECT_NE(pending.status().message().find("was removed"),
              std::string::npos);
  });
}

}  // namespace
}  // namespace tf_hvd
