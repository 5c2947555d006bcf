#include "runtime/agreement/stall_answer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "runtime/agreement/message.h"

namespace tf_hvd {
namespace {

RankList Only(int rank) { return RankList(std::vector<int>{rank}); }

StallAnswer Voted(int rank, uint32_t age_ms) {
  StallAnswer answer;
  answer.voted = Only(rank);
  answer.age_ms = age_ms;
  return answer;
}

StallAnswer Missing(int rank, const std::string& waits_for) {
  StallAnswer answer;
  answer.missing = Only(rank);
  answer.waits.push_back({waits_for, Only(rank), false, false, "", ""});
  return answer;
}

StallAnswer Silent(int rank) {
  StallAnswer answer;
  answer.silent = Only(rank);
  return answer;
}

std::string Bytes(const StallAnswer& answer) {
  Message message;
  message.kind = MessageKind::kAnswer;
  message.answer = answer;
  return EncodeMessage(message);
}

TEST(RankList, KeepsTheLowestAndCountsAll) {
  std::vector<int> even;
  std::vector<int> odd;
  for (int rank = 0; rank < 100; ++rank) {
    (rank % 2 == 0 ? even : odd).push_back(rank);
  }
  const RankList merged = Merge(RankList(even), RankList(odd));
  EXPECT_EQ(merged.count, 100u);
  ASSERT_EQ(merged.named.size(), RankList::kMaxNamed);
  for (size_t i = 0; i < merged.named.size(); ++i) {
    EXPECT_EQ(merged.named[i], static_cast<int>(i));
  }
  EXPECT_TRUE(RankList().empty());
  EXPECT_FALSE(Only(0).empty());
}

TEST(StallAnswer, MergesAnswers) {
  StallAnswer merged = Merge(Voted(3, 1000), Voted(1, 2000));
  merged = Merge(merged, Missing(5, "'h' (world)"));
  merged = Merge(Missing(2, ""), merged);
  merged = Merge(merged, Missing(4, "'h' (world)"));
  merged = Merge(merged, Silent(6));
  EXPECT_FALSE(merged.agreed);
  EXPECT_EQ(merged.age_ms, 2000u);
  EXPECT_EQ(merged.voted.named, (std::vector<int32_t>{1, 3}));
  EXPECT_EQ(merged.missing.named, (std::vector<int32_t>{2, 4, 5}));
  EXPECT_EQ(merged.silent.named, (std::vector<int32_t>{6}));
  ASSERT_EQ(merged.waits.size(), 2u);
  EXPECT_EQ(merged.waits[0].waits_for, "");
  EXPECT_EQ(merged.waits[0].ranks.named, (std::vector<int32_t>{2}));
  EXPECT_EQ(merged.waits[1].waits_for, "'h' (world)");
  EXPECT_EQ(merged.waits[1].ranks.named, (std::vector<int32_t>{4, 5}));
}

TEST(StallAnswer, OneAgreedAnswerIsEnough) {
  StallAnswer agreed;
  agreed.agreed = true;
  EXPECT_TRUE(Merge(agreed, Missing(1, "")).agreed);
  EXPECT_TRUE(Merge(Missing(1, ""), agreed).agreed);
}

// Whatever the order of the answers and the tree.
TEST(StallAnswer, MergeOrderDoesNotMatter) {
  std::mt19937 random(7);
  const auto some = [&random](StallAnswer answer) {
    answer.stuck_ms = random() % 1000;
    if (answer.waits.empty()) return answer;
    answer.waits[0].place = random() % 2 ? "a" : "b";
    if (random() % 3 == 0) {
      answer.waits[0].waits_for = "";
      answer.waits[0].compiling = "step";
    }
    return answer;
  };
  for (int round = 0; round < 50; ++round) {
    std::vector<StallAnswer> answers;
    for (int rank = 0; rank < 60; ++rank) {
      const auto kind = random() % 3;
      answers.push_back(
          some(kind == 0   ? Voted(rank, random() % 1000)
               : kind == 1 ? Silent(rank)
                           : Missing(rank, std::to_string(random() % 5))));
    }
    StallAnswer in_order;
    for (const StallAnswer& answer : answers) {
      in_order = Merge(in_order, answer);
    }
    while (answers.size() > 1) {
      std::shuffle(answers.begin(), answers.end(), random);
      const StallAnswer last = answers.back();
      answers.pop_back();
      answers.back() = Merge(answers.back(), last);
    }
    EXPECT_EQ(Bytes(answers[0]), Bytes(in_order));
  }
}

// The size of a message does not grow with the job.
// The ranks' lines differ only in the frame in which XLA was called.
TEST(StallAnswer, CompilingRanksLeaveRoomForASleepingOne) {
  StallAnswer merged;
  for (int rank = 0; rank < 40; ++rank) {
    StallAnswer answer = Missing(rank, "");
    answer.waits[0].compiling = rank == 39 ? "" : "step";
    answer.waits[0].place = "train.py, line " + std::to_string(rank);
    merged = rank == 0 ? answer : Merge(merged, answer);
  }
  ASSERT_EQ(merged.waits.size(), 2u);
  EXPECT_EQ(merged.waits[0].ranks.count, 39u);
  EXPECT_EQ(merged.waits[1].place, "train.py, line 39");
}

TEST(StallAnswer, SizeIsBounded) {
  StallAnswer hundred;
  StallAnswer all;
  for (int rank = 0; rank < 30'000; ++rank) {
    const std::string waits_for = "'" + std::to_string(10'000 + rank / 3) + "'";
    StallAnswer answer = rank % 3 == 0   ? Voted(rank, 30'000)
                         : rank % 3 == 1 ? Silent(rank)
                                         : Missing(rank, waits_for);
    all = Merge(all, answer);
    if (rank == 100) hundred = all;
  }
  EXPECT_EQ(Bytes(all).size(), Bytes(hundred).size());
  EXPECT_EQ(all.voted.count, 10'000u);
  EXPECT_EQ(all.missing.count, 10'000u);
  EXPECT_EQ(all.silent.count, 10'000u);
  EXPECT_EQ(all.waits.size(), StallAnswer::kMaxGroups);
}

}  // namespace
}  // namespace tf_hvd
