// Changes of process sets as the calls that Python makes, on all ranks at once.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "runtime/api/set_calls.h"
#include "tests/runtime/job.h"

namespace tf_hvd {
namespace {

class SetCallsTest : public OnEachTree {};
INSTANTIATE_TEST_SUITE_P(Trees, SetCallsTest, ::testing::ValuesIn(AllNodes()),
                         TreeName);

TEST_P(SetCallsTest, InitsSetsMustAgree) {
  Job job(GetParam());
  job.Run([](Rank& self) {
    Runtime* const runtime = self.runtime();
    EXPECT_TRUE(AgreeOnSets(runtime, {}).ok());
    EXPECT_TRUE(AgreeOnSets(runtime, {0, kSetEnd, kSetEnd}).ok());
    if (self.size() == 1) return;
    const bool first = self.rank() == 0;
    Status status =
        AgreeOnSets(runtime, first ? std::vector<int32_t>{0, 1, -1, 2, -1}
                                   : std::vector<int32_t>{});
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
    EXPECT_EQ(status.message(),
              "mismatch in barrier 'init': rank 0 has process sets [0, 1], "
              "[2], rank 1 has no process sets; process sets must be equal on "
              "all ranks");
    status = AgreeOnSets(runtime,
                         {first ? kCommunicatorSet : 0, kSetEnd, 1, kSetEnd});
    EXPECT_NE(status.message().find(
                  "rank 0 has process sets [a communicator's ranks], [1], "
                  "rank 1 has process sets [0], [1]"),
              std::string::npos)
        << status.message();
    EXPECT_TRUE(AgreeOnSets(runtime, {}).ok());
  });
}

TEST_P(SetCallsTest, TheSameRanksTwiceAreRefusedOnAllRanks) {
  Job job(GetParam());
  job.Run([](Rank& self) {
    Runtime* const runtime = self.runtime();
    int32_t number = -1;
    ASSERT_TRUE(AddSet(runtime, {0}, &number).ok());
    EXPECT_EQ(number, 1);
    const Status again = AddSet(runtime, {0}, &number);
    EXPECT_EQ(again.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(
        again.message(),
        "add_process_set([0]): process set 1 has the same ranks; use that "
        "one, or remove it first");
    ASSERT_TRUE(RemoveSet(runtime, 1).ok());
    EXPECT_EQ(runtime->FindSet({0}), self.size() == 1 ? 0 : -1);
    ASSERT_TRUE(AddSet(runtime, {0}, &number).ok());
    EXPECT_EQ(number, 2);
  });
}

TEST_P(SetCallsTest, WrongRanksAreRefusedOnAllRanks) {
  Job job(GetParam());
  job.Run([](Rank& self) {
    Runtime* const runtime = self.runtime();
    const int32_t size = self.size();
    const std::string no_rank = "add_process_set([0, " + std::to_string(size) +
                                "]): the job has no rank " +
                                std::to_string(size) + "; its ranks are 0 to " +
                                std::to_string(size - 1);
    const struct {
      std::vector<int32_t> ranks;
      std::string text;
    } kCases[] = {
        {{}, "add_process_set([]): a process set needs at least one rank"},
        {{0, 0},
         "add_process_set([0, 0]): rank 0 is there more than once; name each "
         "rank once"},
        {{-1},
         "add_process_set([-1]): the job has no rank -1; its ranks are 0 to " +
             std::to_string(size - 1)},
        {{0, size}, no_rank},
    };
    int32_t number = -1;
    for (const auto& one : kCases) {
      const Status status = AddSet(runtime, one.ranks, &number);
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
      EXPECT_EQ(status.message(), one.text);
    }
    ASSERT_TRUE(AddSet(runtime, {0}, &number).ok());
    EXPECT_EQ(number, 1);
  });
}

// Right on all ranks but one: that one's mistake is everybody's error.
TEST_P(SetCallsTest, OneRanksMistakeReachesAll) {
  Job job(GetParam());
  if (job.size() == 1) return;
  job.Run([](Rank& self) {
    Runtime* const runtime = self.runtime();
    int32_t number = -1;
    const bool wrong = self.rank() == 1;
    const std::vector<int32_t> ranks = {0, wrong ? self.size() : 1};
    const Status status = AddSet(runtime, ranks, &number);
    EXPECT_EQ(status.code(), wrong ? StatusCode::kInvalidArgument
                                   : StatusCode::kFailedPrecondition);
    const std::string text =
        "the job has no rank " + std::to_string(self.size()) +
        "; its ranks are 0 to " + std::to_string(self.size() - 1);
    EXPECT_NE(status.message().find(text), std::string::npos)
        << status.message();
    ASSERT_TRUE(AddSet(runtime, {0, 1}, &number).ok());
    EXPECT_EQ(number, 1);
  });
}

TEST_P(SetCallsTest, GatherRanksGivesEveryRanksPart) {
  Job job(GetParam());
  job.Run([](Rank& self) {
    // Rank r gives r times its number: rank 0 nothing.
    const std::vector<int32_t> mine(static_cast<size_t>(self.rank()),
                                    self.rank());
    std::vector<std::vector<int32_t>> all;
    ASSERT_TRUE(GatherRanks(self.runtime(), mine, &all).ok());
    ASSERT_EQ(all.size(), static_cast<size_t>(self.size()));
    for (int rank = 0; rank < self.size(); ++rank) {
      EXPECT_EQ(all[static_cast<size_t>(rank)],
                std::vector<int32_t>(static_cast<size_t>(rank), rank));
    }
  });
}

TEST_P(SetCallsTest, ACommunicatorOnOneRankOnlyIsAMismatch) {
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

TEST(SetCallsEndTest, AfterTheEndEveryCallFails) {
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
