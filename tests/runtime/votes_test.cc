// The count of votes at one place in the tree.
#include "runtime/agreement/votes.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace tf_hvd {
namespace {

// The leader of a second node, with two ranks below it, which passes votes up.
ProcessSets Middle() {
  return {1, MembersOf({0, 1, 2, 3}), PlaceOf(1, {{0}, {1, 2, 3}})};
}

Vote VoteOf(int rank) {
  Request request;
  request.tensors.push_back({DType::kFloat32, {1}});
  Vote vote;
  vote.first = {rank, SharedRequest(std::move(request))};
  vote.last_rank = rank;
  return vote;
}

const Key kX = {kWorldSet, "x"};

// The names that become complete.
std::vector<std::string> Count(Votes* votes, const ProcessSets& sets, int child,
                               const Key& key) {
  const auto complete =
      votes->Count(*sets.Find(key.first), child, key, VoteOf(child));
  std::vector<std::string> names;
  for (const CompleteVote& one : *complete) names.push_back(one.key.second);
  return names;
}

using Names = std::vector<std::string>;

TEST(Votes, RelaysForASetWithoutThisRank) {
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

}  // namespace
}  // namespace tf_hvd
