// The count of votes at one place in the tree.
#include "runtime/agreement/votes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tf_hvd {
namespace {

// Three ranks on one node, seen from above: coordinated here.
ProcessSets Top() { return {0, MembersOf({0, 1, 2}), PlaceOf(0, {{0, 1, 2}})}; }

// The leader of a second node, with two ranks below: passes up.
ProcessSets Middle() {
  return {1, MembersOf({0, 1, 2, 3}), PlaceOf(1, {{0}, {1, 2, 3}})};
}

Vote VoteOf(int rank, int64_t rows = 1) {
  Request request;
  request.tensors.push_back({DType::kFloat32, {rows}});
  Vote vote;
  vote.first = {rank, SharedRequest(std::move(request))};
  vote.last_rank = rank;
  return vote;
}

const Key kX = {kWorldSet, "x"};
const Key kY = {kWorldSet, "y"};
const Key kJoin = {kWorldSet, kJoinName};

// The names that became complete, in their order; "twice" if the child had
// voted before.
std::vector<std::string> Count(Votes* votes, const ProcessSets& sets, int child,
                               const Key& key) {
  const auto complete =
      votes->Count(*sets.Find(key.first), child, key, VoteOf(child));
  if (!complete.has_value()) return {"twice"};
  std::vector<std::string> names;
  for (const CompleteVote& one : *complete) names.push_back(one.key.second);
  return names;
}

using Names = std::vector<std::string>;

TEST(Votes, CompleteWithTheLastChildInAnyOrder) {
  const ProcessSets sets = Top();
  std::vector<int> order = {0, 1, 2};
  do {
    Votes votes;
    EXPECT_EQ(Count(&votes, sets, order[0], kX), Names());
    EXPECT_EQ(Count(&votes, sets, order[1], kX), Names());
    EXPECT_FALSE(votes.empty());
    const auto complete =
        votes.Count(sets.world(), order[2], kX, VoteOf(order[2]));
    ASSERT_EQ(complete->size(), 1u);
    EXPECT_EQ((*complete)[0].key, kX);
    EXPECT_EQ((*complete)[0].vote.first.rank, 0);
    EXPECT_EQ((*complete)[0].vote.last_rank, order[2]);
    EXPECT_FALSE((*complete)[0].vote.joined);
    EXPECT_TRUE(votes.empty());
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(Votes, AreMerged) {
  const ProcessSets sets = Top();
  Votes votes;
  ASSERT_TRUE(votes.Count(sets.world(), 2, kX, VoteOf(2)));
  ASSERT_TRUE(votes.Count(sets.world(), 1, kX, VoteOf(1, 2)));
  const auto complete = votes.Count(sets.world(), 0, kX, VoteOf(0));
  ASSERT_EQ(complete->size(), 1u);
  const Vote& vote = (*complete)[0].vote;
  EXPECT_EQ(vote.first.request->tensors[0].shape[0], 1);
  ASSERT_TRUE(vote.other.has_value());
  EXPECT_EQ(vote.other->rank, 1);
}

TEST(Votes, AChildVotesOnceForARequest) {
  const ProcessSets sets = Top();
  Votes votes;
  EXPECT_EQ(Count(&votes, sets, 1, kX), Names());
  EXPECT_EQ(Count(&votes, sets, 1, kY), Names());
  EXPECT_EQ(Count(&votes, sets, 1, kX), Names{"twice"});
  // The next instance of a name is another request.
  EXPECT_EQ(Count(&votes, sets, 0, kY), Names());
  EXPECT_EQ(Count(&votes, sets, 2, kY), Names{"y"});
  EXPECT_EQ(Count(&votes, sets, 1, kY), Names());
}

TEST(Votes, AChildWithoutMembersIsNotWaitedFor) {
  ProcessSets sets = Top();
  sets.Add(1, {0, 2});
  Votes votes;
  EXPECT_EQ(Count(&votes, sets, 2, {1, "x"}), Names());
  EXPECT_EQ(Count(&votes, sets, 0, {1, "x"}), Names{"x"});
}

TEST(Votes, AChildThatHasJoinedCountsAsHavingVoted) {
  ProcessSets sets = Top();
  sets.Add(1, {0, 1, 2});
  Votes votes;
  EXPECT_EQ(Count(&votes, sets, 1, kJoin), Names());
  EXPECT_EQ(Count(&votes, sets, 2, kX), Names());
  const auto complete = votes.Count(sets.world(), 0, kX, VoteOf(0));
  ASSERT_EQ(complete->size(), 1u);
  EXPECT_TRUE((*complete)[0].vote.joined);
  // In that set only.
  EXPECT_EQ(Count(&votes, sets, 2, {1, "x"}), Names());
  EXPECT_EQ(Count(&votes, sets, 0, {1, "x"}), Names());
}

// Who voted before it joined takes part with its data.
TEST(Votes, AVoteBeforeTheJoinIsAVote) {
  const ProcessSets sets = Top();
  Votes votes;
  EXPECT_EQ(Count(&votes, sets, 1, kX), Names());
  EXPECT_EQ(Count(&votes, sets, 1, kJoin), Names());
  EXPECT_EQ(Count(&votes, sets, 2, kX), Names());
  const auto complete = votes.Count(sets.world(), 0, kX, VoteOf(0));
  ASSERT_EQ(complete->size(), 1u);
  EXPECT_FALSE((*complete)[0].vote.joined);
}

TEST(Votes, WhatIsOpenGoesOnBeforeTheJoinThatCompletesIt) {
  const ProcessSets sets = Top();
  Votes votes;
  for (const int child : {0, 2}) {
    EXPECT_EQ(Count(&votes, sets, child, kY), Names());
    EXPECT_EQ(Count(&votes, sets, child, kX), Names());
    EXPECT_EQ(Count(&votes, sets, child, kJoin), Names());
  }
  EXPECT_EQ(Count(&votes, sets, 1, kJoin), (Names{"x", "y", kJoinName}));
}

TEST(Votes, AJoinCompletesNothingOfAnotherSet) {
  ProcessSets sets = Top();
  sets.Add(1, {0, 1});
  Votes votes;
  for (const int child : {0, 1}) {
    EXPECT_EQ(Count(&votes, sets, child, kX), Names());
  }
  EXPECT_EQ(Count(&votes, sets, 0, {1, kJoinName}), Names());
  EXPECT_EQ(Count(&votes, sets, 1, {1, kJoinName}), Names{kJoinName});
}

TEST(Votes, AfterTheJoinAllVoteAgain) {
  const ProcessSets sets = Top();
  Votes votes;
  EXPECT_EQ(Count(&votes, sets, 0, kJoin), Names());
  EXPECT_EQ(Count(&votes, sets, 1, kJoin), Names());
  EXPECT_EQ(Count(&votes, sets, 2, kJoin), Names{kJoinName});
  votes.Ordered(kJoin);
  EXPECT_EQ(Count(&votes, sets, 0, kX), Names());
  EXPECT_EQ(Count(&votes, sets, 1, kX), Names());
  EXPECT_EQ(Count(&votes, sets, 2, kX), Names{"x"});
}

// What is not coordinated here is remembered until its batch has come.
TEST(Votes, RememberWhatWasPassedUp) {
  const ProcessSets sets = Middle();
  ASSERT_FALSE(sets.world().coordinated);
  Votes votes;
  EXPECT_EQ(Count(&votes, sets, 3, kX), Names());
  EXPECT_EQ(Count(&votes, sets, 1, kX), Names());
  EXPECT_EQ(Count(&votes, sets, 2, kX), Names{"x"});
  EXPECT_FALSE(votes.empty());
  votes.Ordered(kY);
  EXPECT_FALSE(votes.empty());
  votes.Ordered(kX);
  EXPECT_TRUE(votes.empty());
}

TEST(Votes, RelayForASetOfOthers) {
  ProcessSets sets = Middle();
  sets.Add(1, {0, 2, 3});
  Votes votes;
  EXPECT_EQ(Count(&votes, sets, 2, kX), Names());
  EXPECT_FALSE(votes.RelaysForOthers(sets));
  EXPECT_EQ(Count(&votes, sets, 2, {1, "x"}), Names());
  EXPECT_TRUE(votes.RelaysForOthers(sets));
  EXPECT_EQ(Count(&votes, sets, 3, {1, "x"}), Names{"x"});
  EXPECT_TRUE(votes.RelaysForOthers(sets));
  votes.Ordered({1, "x"});
  EXPECT_FALSE(votes.RelaysForOthers(sets));
}

TEST(Votes, OfARemovedSetAreDropped) {
  ProcessSets sets = Middle();
  sets.Add(1, {0, 2, 3});
  sets.Add(2, {0, 2});
  Votes votes;
  EXPECT_EQ(Count(&votes, sets, 2, {1, "counted"}), Names());
  EXPECT_EQ(Count(&votes, sets, 2, {2, "passed up"}), Names{"passed up"});
  votes.DropSet(2);
  EXPECT_FALSE(votes.empty());
  votes.DropSet(1);
  EXPECT_TRUE(votes.empty());
}

TEST(Votes, EndWithTheRuntime) {
  const ProcessSets sets = Middle();
  Votes votes;
  EXPECT_EQ(Count(&votes, sets, 2, kX), Names());
  for (const int child : {1, 2, 3}) Count(&votes, sets, child, kY);
  votes.Clear();
  EXPECT_TRUE(votes.empty());
}

}  // namespace
}  // namespace tf_hvd
