#include "runtime/agreement/decision.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/request/mismatch.h"
#include "runtime/request/sources.h"

namespace tf_hvd {
namespace {

Request Allreduce(int64_t rows, OpKind kind = OpKind::kAllreduce) {
  Request request;
  request.kind = kind;
  request.tensors.push_back({DType::kFloat32, {rows}});
  return request;
}

Vote VoteOf(int rank, const Request& request) {
  Vote vote;
  vote.first = {rank, SharedRequest(request)};
  vote.last_rank = rank;
  return vote;
}

Vote RandomVote(int rank, std::mt19937* random) {
  // Few different requests, so that all kinds of agreement occur.
  Vote vote = VoteOf(rank, Allreduce((*random)() % 3));
  vote.joined = (*random)() % 4 == 0;
  if ((*random)() % 4 == 0) {
    vote.local_error = LocalError{rank, "refused by " + std::to_string(rank)};
  }
  vote.step = static_cast<int64_t>((*random)() % 3) - 1;
  if ((*random)() % 2 == 0) {
    vote.sources = RankSources{rank, static_cast<int64_t>((*random)() % 3)};
  }
  return vote;
}

// Everything except `last_rank`, as text.
std::string Show(const Vote& vote) {
  std::string text = std::to_string(vote.first.rank) + ":";
  text += vote.first.request.bytes();
  if (vote.other.has_value()) {
    text += " other " + std::to_string(vote.other->rank) + ":";
    text += vote.other->request.bytes();
  }
  if (vote.local_error.has_value()) {
    text += " refused " + std::to_string(vote.local_error->rank) + ":" +
            vote.local_error->text;
  }
  text += " step " + std::to_string(vote.step);
  if (vote.off_step.has_value()) {
    text += " off " + std::to_string(vote.off_step->rank) + ":" +
            std::to_string(vote.off_step->step);
  }
  for (const auto* sources : {&vote.sources, &vote.off_sources}) {
    if (!sources->has_value()) continue;
    text += " of " + std::to_string((*sources)->rank) + ":" +
            std::to_string((*sources)->digest);
  }
  return text + (vote.joined ? " joined" : "");
}

std::string StepText(const Vote& vote) {
  const std::string rank = "rank " + std::to_string(vote.first.rank);
  const int64_t step = vote.step;
  return step < 0 ? rank + " gives no step"
                  : rank + " is at step " + std::to_string(step);
}

std::string StepsText(const Vote& first, const Vote& other) {
  return "mismatch in allreduce 'x': " + StepText(first) + ", " +
         StepText(other) +
         "; all ranks must run the same steps. If one rank failed, repeated or "
         "skipped a step, make every rank do the same, or restart all ranks "
         "from a checkpoint";
}

// For ranks that have sent no names.
std::string SourcesText(const Vote& first, const Vote& other) {
  return "mismatch in allreduce 'x': rank " + std::to_string(first.first.rank) +
         " reduces the gradient of other variables, rank " +
         std::to_string(other.first.rank) + " that of other variables; ";
}

std::string Verdict(std::string_view name, const Vote& vote,
                    const SourceNames& names = SourceNames()) {
  return Decide(name, vote, kWorldSet, names);
}

TEST(Agreement, MergeIsCommutative) {
  std::mt19937 random(1);
  for (int i = 0; i < 1000; ++i) {
    const Vote a = RandomVote(static_cast<int>(random() % 4), &random);
    const Vote b = RandomVote(4 + static_cast<int>(random() % 4), &random);
    EXPECT_EQ(Show(Merge(a, b)), Show(Merge(b, a)));
  }
}

TEST(Agreement, MergeIsAssociative) {
  std::mt19937 random(2);
  for (int i = 0; i < 1000; ++i) {
    std::vector<int> ranks = {0, 1, 2};
    std::shuffle(ranks.begin(), ranks.end(), random);
    const Vote a = RandomVote(ranks[0], &random);
    const Vote b = RandomVote(ranks[1], &random);
    const Vote c = RandomVote(ranks[2], &random);
    EXPECT_EQ(Show(Merge(Merge(a, b), c)), Show(Merge(a, Merge(b, c))));
  }
}

TEST(Agreement, LastRankIsFromTheLaterVote) {
  const Vote a = VoteOf(3, Allreduce(1));
  const Vote b = VoteOf(1, Allreduce(1));
  EXPECT_EQ(Merge(a, b).last_rank, 1);
  EXPECT_EQ(Merge(b, a).last_rank, 3);
}

// Any order of arrival, merged along any tree, gives the same decision as all
// votes at once.
TEST(Agreement, AnyOrderAndAnyTreeGiveTheSameVerdict) {
  std::mt19937 random(3);
  for (int i = 0; i < 1000; ++i) {
    const size_t count = 1 + random() % 6;
    std::vector<Vote> votes;
    for (size_t rank = 0; rank < count; ++rank) {
      votes.push_back(RandomVote(static_cast<int>(rank), &random));
    }
    const auto refused = std::find_if(
        votes.begin(), votes.end(),
        [](const Vote& vote) { return vote.local_error.has_value(); });
    const auto differs =
        std::find_if(votes.begin(), votes.end(), [&](const Vote& vote) {
          return vote.first.request != votes[0].first.request;
        });
    const auto off = std::find_if(
        votes.begin(), votes.end(),
        [&](const Vote& vote) { return vote.step != votes[0].step; });
    const auto knows =
        std::find_if(votes.begin(), votes.end(),
                     [](const Vote& vote) { return vote.sources.has_value(); });
    const auto others =
        std::find_if(votes.begin(), votes.end(), [&](const Vote& vote) {
          return vote.sources.has_value() &&
                 vote.sources->digest != knows->sources->digest;
        });
    std::string expected;
    if (refused != votes.end()) {
      const std::string rank = std::to_string(refused->local_error->rank);
      expected = "rank " + rank + ": refused by " + rank;
    } else if (differs != votes.end()) {
      expected = DescribeMismatch("x", 0, *votes[0].first.request,
                                  differs->first.rank, *differs->first.request);
    } else if (off != votes.end()) {
      expected = StepsText(votes[0], *off);
    } else if (others != votes.end()) {
      expected = SourcesText(*knows, *others);
    }
    while (votes.size() > 1) {  // merges two random votes until one is left
      std::shuffle(votes.begin(), votes.end(), random);
      const Vote merged = Merge(votes[votes.size() - 2], votes.back());
      votes.pop_back();
      votes.back() = merged;
    }
    EXPECT_EQ(Verdict("x", votes[0]).substr(0, expected.size()), expected);
    EXPECT_EQ(Verdict("x", votes[0]).empty(), expected.empty());
  }
}

// Two tasks with the same shapes: the ranks detect the difference by the
// variables.
TEST(Agreement, DifferentSourcesAreReportedByName) {
  SourceTable table;
  table.Note(1, {{11, 0, "trunk/kernel"}, {12, 1, "head_a/kernel"}});
  table.Note(2, {{11, 0, "trunk/kernel"}, {13, 2, "head_b/kernel"}});
  SourceNames names;
  const auto of = [&](int rank, int64_t list) {
    const auto known = table.Find(list);
    Vote vote = VoteOf(rank, Allreduce(3));
    vote.sources = RankSources{rank, known->digest};
    names.Add(kWorldSet, known->digest, known->bytes);
    return vote;
  };
  EXPECT_EQ(Verdict("x", Merge(of(0, 1), of(1, 1)), names), "");
  EXPECT_THAT(Verdict("x", Merge(of(0, 1), of(1, 2)), names),
              testing::StartsWith(
                  "mismatch in allreduce 'x': rank 0 reduces the gradient of "
                  "'head_a/kernel' (tensor 1), rank 1 that of 'head_b/kernel' "
                  "(tensor 1); "));
}

TEST(Agreement, NamesAreSentOnceAndTheOldestAreDropped) {
  SourceNames names;
  EXPECT_TRUE(names.Add(0, 7, "a"));
  EXPECT_FALSE(names.Add(0, 7, "a"));
  EXPECT_TRUE(names.Add(1, 7, "b"));
  EXPECT_EQ(names.Find(1, 7), "b");
  for (int64_t digest = 100; digest < 5000; ++digest) {
    EXPECT_TRUE(names.Add(0, digest, "c"));
  }
  EXPECT_EQ(names.Find(1, 7), "");
  EXPECT_TRUE(names.Add(1, 7, "b"));
}

TEST(Agreement, MergedVoteHasEachListOnce) {
  Vote a = VoteOf(0, Allreduce(3));
  Vote b = VoteOf(1, Allreduce(3));
  a.told = {{7, "seven"}};
  b.told = {{7, "seven"}, {8, "eight"}};
  const std::vector<ToldSources> told = Merge(b, a).told;
  ASSERT_EQ(told.size(), 2);
  EXPECT_EQ(told[0].digest + told[1].digest, 15);
}

TEST(Agreement, StepsOfCallersAreCompared) {
  const auto at = [](int rank, int64_t step) {
    Vote vote = VoteOf(rank, Allreduce(3));
    vote.step = step;
    return vote;
  };
  const auto decision = [](const Vote& a, const Vote& b) {
    return Verdict("x", Merge(a, b));
  };
  EXPECT_EQ(decision(at(0, 7), at(1, 7)), "");
  EXPECT_EQ(decision(at(0, 7), at(1, 6)), StepsText(at(0, 7), at(1, 6)));
  EXPECT_EQ(decision(at(0, -1), at(1, 0)), StepsText(at(0, -1), at(1, 0)));
  // A rank that has joined has no vote.
  Vote joined = at(2, 7);
  joined.joined = true;
  EXPECT_EQ(Verdict("x", joined), "");
}

TEST(Agreement, KindsThatRunAfterJoin) {
  struct Row {
    OpKind kind;
    bool runs;
  };
  const Row rows[] = {
      {OpKind::kAllreduce, true},     {OpKind::kAllgather, true},
      {OpKind::kBroadcast, false},    {OpKind::kJoin, true},
      {OpKind::kBarrier, true},       {OpKind::kAddSet, true},
      {OpKind::kRemoveSet, true},     {OpKind::kAlltoall, false},
      {OpKind::kReducescatter, false}};
  for (const Row& row : rows) {
    Vote vote = VoteOf(0, Allreduce(3, row.kind));
    EXPECT_EQ(Verdict("g", vote), "");
    vote.joined = true;
    const std::string text = Verdict("g", vote);
    EXPECT_EQ(text.empty(), row.runs) << NameOf(row.kind);
    if (row.runs) continue;
    EXPECT_NE(text.find("'g'"), std::string::npos);
    EXPECT_NE(text.find("joined"), std::string::npos);
  }
}

}  // namespace
}  // namespace tf_hvd
