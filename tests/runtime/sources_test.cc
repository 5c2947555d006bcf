#include "runtime/request/sources.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace tf_hvd {
namespace {

// Lists 1 and 2 contain variables 10 and 20; each rank has its own numbers.
void NoteTwoHeads(SourceTable* rank, int64_t first, int64_t second) {
  rank->Note(1, {{first, 0, "head_a"}});
  rank->Note(2, {{second, 0, "head_b"}});
  rank->Note(3, {{first, 0, "head_a"}, {second, 1, "head_b"}});
}

int64_t DigestOf(SourceTable* rank, int64_t list) {
  return rank->Find(list)->digest;
}

TEST(Sources, UnbroadcastVariableIsKnownByItsPlace) {
  SourceTable rank;
  NoteTwoHeads(&rank, 10, 20);
  EXPECT_EQ(DigestOf(&rank, 1), DigestOf(&rank, 2));
  rank.Note(4, {{20, 1, "head_b"}});
  EXPECT_NE(DigestOf(&rank, 1), DigestOf(&rank, 4));
}

TEST(Sources, BroadcastIdentifiesVariablesEquallyOnAllRanks) {
  SourceTable root;
  SourceTable other;
  NoteTwoHeads(&root, 10, 20);
  NoteTwoHeads(&other, 77, 66);
  const int64_t sent = root.BroadcastNumber(3);
  root.Identify(3, sent);
  other.Identify(3, sent);
  for (const int64_t list : {1, 2, 3}) {
    EXPECT_EQ(DigestOf(&root, list), DigestOf(&other, list)) << list;
  }
  EXPECT_NE(DigestOf(&root, 1), DigestOf(&root, 2));
}

// Rows of a grid of ranks, then its columns: finally all have one root's
// number.
TEST(Sources, RootReusesTheNumberOfTheSameBroadcast) {
  SourceTable rank;
  NoteTwoHeads(&rank, 10, 20);
  const int64_t sent = rank.BroadcastNumber(3);
  rank.Identify(3, sent);
  EXPECT_EQ(rank.BroadcastNumber(3), sent);
  EXPECT_EQ(rank.BroadcastNumber(1), sent);  // at the same place
  EXPECT_NE(rank.BroadcastNumber(2), sent);  // at a different place
  rank.Restart();
  EXPECT_NE(rank.BroadcastNumber(3), sent);
}

TEST(Sources, IdentityLivesAsLongAsTheVariable) {
  SourceTable rank;
  NoteTwoHeads(&rank, 10, 20);
  const int64_t never = DigestOf(&rank, 1);
  rank.Identify(3, 5);
  const int64_t known = DigestOf(&rank, 1);
  rank.Forget(3);
  EXPECT_EQ(DigestOf(&rank, 1), known);
  rank.Note(1, {{10, 0, "head_a"}});
  EXPECT_EQ(DigestOf(&rank, 1), known);
  rank.ForgetVariable(10);
  rank.Note(1, {{10, 0, "head_a"}});
  EXPECT_EQ(DigestOf(&rank, 1), never);
}

TEST(Sources, RestartForgetsThePreviousJob) {
  SourceTable rank;
  NoteTwoHeads(&rank, 10, 20);
  const int64_t never = DigestOf(&rank, 2);
  rank.Identify(3, 5);
  EXPECT_EQ(rank.CountReduction(1, "a", 0), 1);
  EXPECT_NE(DigestOf(&rank, 2), never);
  rank.Restart();
  EXPECT_EQ(DigestOf(&rank, 2), never);
  EXPECT_EQ(rank.CountReduction(1, "a", 0), 1);
}

TEST(Sources, GraphOfAnotherProcessRefersToNoListHere) {
  SourceTable rank;
  EXPECT_EQ(rank.Find(4), nullptr);
  EXPECT_GT(rank.BroadcastNumber(4), 0);
  rank.Identify(4, 5);
}

TEST(Sources, ReductionsAreCountedPerProcessSetUntilJoin) {
  SourceTable rank;
  NoteTwoHeads(&rank, 10, 20);
  EXPECT_EQ(rank.CountReduction(1, "a", 0), 1);
  EXPECT_EQ(rank.CountReduction(1, "a", 0), 2);
  EXPECT_EQ(rank.CountReduction(1, "a", 3), 1);
  rank.AfterJoin(0);
  EXPECT_EQ(rank.CountReduction(1, "a", 0), 1);
  EXPECT_EQ(rank.CountReduction(1, "a", 3), 2);
}

// One rank has saved it, and so knows the list; all have loaded it.
TEST(Sources, LoadedGraphIsCountedEquallyWhereItWasSaved) {
  SourceTable saver;
  SourceTable other;
  NoteTwoHeads(&saver, 10, 20);
  for (int i = 0; i < 4; ++i) saver.CountReduction(1, "head_a/3", 0);
  EXPECT_EQ(saver.CountReduction(1, "head_a/9", 0), 1);
  EXPECT_EQ(other.CountReduction(1, "head_a/5", 0), 1);
  saver.Forget(1);
  EXPECT_EQ(saver.CountReduction(1, "head_a/9", 0), 1);
}

TEST(Sources, FirstDifferenceIsNamed) {
  using Texts = std::pair<std::string, std::string>;
  SourceTable rank;
  rank.Note(1, {{10, 0, "a"}, {20, 1, "b"}});
  rank.Note(2, {{10, 0, "a"}, {0, 2, ""}});
  rank.Note(3, {{10, 0, "a"}, {30, 2, "b"}});
  rank.Note(4, {{10, 0, "a"}});
  const auto bytes = [&](int64_t list) { return rank.Find(list)->bytes; };
  EXPECT_EQ(
      DescribeSources(bytes(1), bytes(2)),
      Texts("'b' (tensor 1)", "a tensor that is not a variable (tensor 1)"));
  EXPECT_EQ(DescribeSources(bytes(1), bytes(3)),
            Texts("'b' (tensor 1)", "another variable of the same name"));
  EXPECT_EQ(DescribeSources(bytes(4), bytes(1)),
            Texts("no variable (tensor 1)", "'b' (tensor 1)"));
  EXPECT_EQ(DescribeSources("", bytes(1)),
            Texts("other variables", "'a' (tensor 0)"));
  EXPECT_EQ(DescribeSources(bytes(1).substr(0, 5), bytes(1)),
            Texts("other variables", "'a' (tensor 0)"));
}

}  // namespace
}  // namespace tf_hvd
