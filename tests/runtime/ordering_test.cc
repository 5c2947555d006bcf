// The results of complete requests, their order, and their recipients.
#include "runtime/agreement/ordering.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace tf_hvd {
namespace {

// Three ranks on one node, as seen by their leader.
ProcessSets Top() { return {0, MembersOf({0, 1, 2}), PlaceOf(0, {{0, 1, 2}})}; }

Vote VoteFor(const Request& request) {
  Vote vote;
  vote.first = {0, SharedRequest(request)};
  return vote;
}

Vote Allreduce(int64_t rows = 1) {
  Request request;
  request.tensors.push_back({DType::kFloat32, {rows}});
  return VoteFor(request);
}

Vote Join() {
  Request request;
  request.kind = OpKind::kJoin;
  return VoteFor(request);
}

Vote AddSet(std::vector<int32_t> ranks) {
  Request request;
  request.kind = OpKind::kAddSet;
  request.ranks = std::move(ranks);
  return VoteFor(request);
}

Vote RemoveSet(int32_t set) {
  Request request;
  request.kind = OpKind::kRemoveSet;
  request.removed_set = set;
  return VoteFor(request);
}

std::vector<Key> KeysOf(const std::vector<Response>& batch) {
  std::vector<Key> keys;
  for (const Response& one : batch) keys.push_back(one.key);
  return keys;
}

// The batch of one request.
Response OrderOne(Ordering* ordering, const Key& key, const Vote& vote) {
  ordering->Add(key, vote);
  return std::move(ordering->TakeBatch().at(0));
}

// Applies `response`: from now on the slot that it defines stands for the name.
void Define(ProcessSets* sets, const Response& response) {
  ASSERT_TRUE(response.define);
  ASSERT_TRUE(
      sets->Find(response.key.first)
          ->slots.Define(response.slot, response.key.second, response.request));
}

// By set, slot and name, joins last, in whatever order they became ready.
TEST(Ordering, SortsABatch) {
  const std::vector<Key> expected = {{kWorldSet, "slot"},
                                     {kWorldSet, "a"},
                                     {1, "b"},
                                     {kWorldSet, kJoinName},
                                     {1, kJoinName}};
  std::vector<Key> ready = expected;
  std::sort(ready.begin(), ready.end());
  ASSERT_NE(ready, expected);
  do {
    ProcessSets sets = Top();
    sets.Add(1, {0, 1});
    Ordering ordering(&sets);
    OrderOne(&ordering, {kWorldSet, "slot"}, Allreduce());
    Define(&sets, OrderOne(&ordering, {kWorldSet, "slot"}, Allreduce()));
    for (const Key& key : ready) {
      ordering.Add(key, key.second == kJoinName ? Join() : Allreduce());
    }
    EXPECT_EQ(KeysOf(ordering.TakeBatch()), expected);
    EXPECT_TRUE(ordering.empty());
  } while (std::next_permutation(ready.begin(), ready.end()));
}

// Once, when a name is agreed for the second time.
TEST(Ordering, OffersASlotOnce) {
  ProcessSets sets = Top();
  Ordering ordering(&sets);
  const Key key = {kWorldSet, "g"};
  const Response first = OrderOne(&ordering, key, Allreduce());
  EXPECT_EQ(first.slot, kNoSlot);
  EXPECT_FALSE(first.define);
  const Response second = OrderOne(&ordering, key, Allreduce());
  EXPECT_EQ(second.slot, 0u);
  Define(&sets, second);
  const Response third = OrderOne(&ordering, key, Allreduce());
  EXPECT_EQ(third.slot, 0u);
  EXPECT_FALSE(third.define);
  // The slot stands for a different request.
  const Response changed = OrderOne(&ordering, key, Allreduce(2));
  EXPECT_EQ(changed.slot, kNoSlot);
  EXPECT_FALSE(changed.define);
}

TEST(Ordering, AppliesTheDecision) {
  ProcessSets sets = Top();
  Ordering ordering(&sets);
  Vote vote = Allreduce();
  vote.joined = true;
  vote.last_rank = 2;
  const Response runs = OrderOne(&ordering, {kWorldSet, "g"}, vote);
  EXPECT_EQ(runs.error, "");
  EXPECT_TRUE(runs.joined);
  EXPECT_EQ(runs.value, 2);
  vote.local_error = LocalError{1, "no"};
  const Response fails = OrderOne(&ordering, {kWorldSet, "g"}, vote);
  EXPECT_EQ(fails.error, "rank 1: no");
  // Not agreed, so no slot.
  EXPECT_EQ(fails.slot, kNoSlot);
}

// Numbers increase in each batch and across batches, including those of other
// controllers, and failed requests get none.
TEST(Ordering, NumbersNewSets) {
  ProcessSets sets = Top();
  Ordering ordering(&sets);
  ordering.Add({kWorldSet, "a"}, AddSet({0, 1}));
  Vote refused = AddSet({1});
  refused.local_error = LocalError{1, "no"};
  ordering.Add({kWorldSet, "b"}, refused);
  ordering.Add({kWorldSet, "c"}, AddSet({0, 2}));
  const std::vector<Response> batch = ordering.TakeBatch();
  ASSERT_EQ(batch.size(), 3u);
  EXPECT_EQ(batch[0].value, 1);
  EXPECT_NE(batch[1].error, "");
  EXPECT_EQ(batch[2].value, 2);
  ordering.SetAdded(2);
  ordering.SetAdded(1);
  EXPECT_EQ(OrderOne(&ordering, {kWorldSet, "d"}, AddSet({1})).value, 3);
  ordering.SetAdded(7);
  EXPECT_EQ(OrderOne(&ordering, {kWorldSet, "e"}, AddSet({1})).value, 8);
}

TEST(Ordering, ReportsWhyASetCannotBeRemoved) {
  const struct {
    int32_t set;
    std::string error;
  } kCases[] = {
      {1, ""},
      {2, "there is no process set 2"},
      {kWorldSet, "process set 0, which is all ranks, cannot be removed"},
  };
  for (const auto& one : kCases) {
    ProcessSets sets = Top();
    sets.Add(1, {0, 1});
    Ordering ordering(&sets);
    EXPECT_EQ(OrderOne(&ordering, {kWorldSet, "s"}, RemoveSet(one.set)).error,
              one.error);
  }
}

TEST(Ordering, ReadyRequestsPrecedeAnEnd) {
  const auto goes_before = [](const std::vector<Response>& batch, bool ends) {
    ProcessSets sets = Top();
    Ordering ordering(&sets);
    EXPECT_TRUE(ordering.TakeBefore(batch).empty());
    ordering.Add({kWorldSet, "g"}, Allreduce());
    EXPECT_EQ(ordering.TakeBefore(batch).size(), ends ? 1u : 0u);
    EXPECT_EQ(ordering.empty(), ends);
  };
  std::vector<Response> batch(1);
  batch[0].close = true;
  goes_before(batch, true);
  batch[0].close = false;
  batch[0].request = Allreduce().first.request;
  goes_before(batch, false);
  batch.emplace_back().request = RemoveSet(1).first.request;
  goes_before(batch, true);
  batch[1].error = "there is no process set 1";
  goes_before(batch, false);
}

// A child gets the responses for its members, and each response is encoded
// once.
TEST(Ordering, ForwardsOnlyResponsesForTheChild) {
  ProcessSets sets = Top();
  sets.Add(1, {0, 1});
  sets.Add(2, {0});
  Ordering ordering(&sets);
  std::vector<std::pair<int, std::vector<Key>>> sent;
  const Ordering::Send send = [&sent](int child, std::string_view bytes) {
    Message message;
    ASSERT_TRUE(DecodeMessage(bytes, &message).ok());
    sent.emplace_back(child, KeysOf(message.batch));
  };
  ordering.Add({kWorldSet, "w"}, Allreduce());
  ordering.Add({1, "x"}, Allreduce());
  ordering.Add({2, "y"}, Allreduce());
  ordering.Forward(ordering.TakeBatch(), send);
  const std::vector<std::pair<int, std::vector<Key>>> expected = {
      {1, {{kWorldSet, "w"}, {1, "x"}}}, {2, {{kWorldSet, "w"}}}};
  EXPECT_EQ(sent, expected);
  EXPECT_EQ(ordering.responses_encoded(), 2u);

  // No empty message.
  ordering.Add({2, "y"}, Allreduce());
  ordering.Forward(ordering.TakeBatch(), send);
  EXPECT_EQ(sent, expected);

  // A response that ends the runtime goes to all, whatever its set.
  std::vector<Response> batch;
  Response& close = batch.emplace_back();
  close.key.first = 2;
  close.close = true;
  ordering.Forward(batch, send);
  EXPECT_EQ(sent.size(), 4u);
}

TEST(Ordering, ForgetsARemovedSet) {
  ProcessSets sets = Top();
  sets.Add(1, {0, 1});
  Ordering ordering(&sets);
  ordering.Add({kWorldSet, "w"}, Allreduce());
  ordering.Add({1, "x"}, Allreduce());
  EXPECT_TRUE(ordering.Contains({1, "x"}));
  ordering.DropSet(1);
  EXPECT_FALSE(ordering.Contains({1, "x"}));
  EXPECT_TRUE(ordering.Contains({kWorldSet, "w"}));
  ordering.Clear();
  EXPECT_TRUE(ordering.empty());
}

}  // namespace
}  // namespace tf_hvd
