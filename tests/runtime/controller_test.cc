// Tests of a single controller that the simulation does not cover.
#include "runtime/agreement/controller.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/runtime/single_controller.h"

namespace tf_hvd {
namespace {

// A set is added and the ranks vote for one call each in the world and in it.
void OrderOneInTheWorldAndOneInTheSet(Controller* controller,
                                      const std::vector<int>& members) {
  Entry add;
  add.name = "s";
  add.request.kind = OpKind::kAddSet;
  add.request.ranks.assign(members.begin(), members.end());
  for (int rank = 1; rank < 9; ++rank) {
    Message vote;
    vote.name = "s";
    vote.vote.first = {rank, SharedRequest(add.request)};
    controller->Receive(rank, EncodeMessage(vote), 0);
  }
  controller->Admit(std::move(add));
  ASSERT_TRUE(controller->EmitReady());
  for (int rank = 1; rank < 9; ++rank) {
    controller->Receive(rank, VoteOf(rank, kWorldSet, "w"), 0);
  }
  controller->Admit(Allreduce("w"));
  for (const int rank : members) {
    if (rank > 0) controller->Receive(rank, VoteOf(rank, 1, "x"), 0);
  }
  ASSERT_TRUE(controller->EmitReady());
}

// Regardless of the number of children and of the other responses in the
// message.
TEST(Controller, EncodesEachResponseOnce) {
  Host host;
  Controller controller(OneNode(), StallOptions(), &host, &host);
  OrderOneInTheWorldAndOneInTheSet(&controller, {2, 3, 7});
  EXPECT_EQ(controller.ordering().responses_encoded(), 3u);
  ASSERT_EQ(host.sent.size(), 16u);
  for (size_t i = 8; i < host.sent.size(); ++i) {
    const auto& [child, message] = host.sent[i];
    const bool member = child == 2 || child == 3 || child == 7;
    ASSERT_EQ(message.batch.size(), member ? 2u : 1u) << child;
    EXPECT_EQ(message.batch[0].key.second, "w");
    if (member) {
      EXPECT_EQ(message.batch[1].key.second, "x");
    }
  }
}

// Responses and listeners of set changes share the controller's list.
TEST(Controller, MemberListIsShared) {
  Host host;
  Controller controller(OneNode(), StallOptions(), &host, &host);
  OrderOneInTheWorldAndOneInTheSet(&controller, {0, 2, 3});
  const ProcessSets& sets = controller.sets();
  ASSERT_EQ(host.added.size(), 1u);
  EXPECT_EQ(host.added[0].get(), sets.Find(1)->members.get());
  EXPECT_EQ(*host.added[0], (std::vector<int>{0, 2, 3}));
  Entry x = Allreduce("x");
  x.set = 1;
  controller.Admit(std::move(x));
  ASSERT_TRUE(controller.EmitReady());
  ASSERT_EQ(host.runs.size(), 3u);
  EXPECT_EQ(host.runs[1].ranks.get(), sets.world().members.get());
  EXPECT_EQ(host.runs[2].ranks.get(), sets.Find(1)->members.get());
}

// A leaf has no children to encode for.
TEST(Controller, LeafEncodesNothing) {
  Host host;
  Controller controller(TwoNodes(3), StallOptions(), &host, &host);
  controller.Receive(2, FrameOf(Ordered("g", Allreduce("g").request)), 0);
  EXPECT_EQ(controller.ordering().responses_encoded(), 0u);
}

// A leader that is not a member of the set {1, 3} relays until the batch has
// arrived, not only until the vote has been sent.
TEST(Controller, RelaysUntilTheBatchArrives) {
  Host host;
  Controller controller(TwoNodes(2), StallOptions(), &host, &host);
  Response add = Ordered("s", [] {
    Request request;
    request.kind = OpKind::kAddSet;
    request.ranks = {1, 3};
    return request;
  }());
  add.value = 1;
  controller.Receive(0, FrameOf(std::move(add)), 0);
  EXPECT_FALSE(controller.RelaysForOthers());

  controller.Receive(3, VoteOf(3, 1, "x"), 0);
  EXPECT_TRUE(controller.RelaysForOthers());
  EXPECT_FALSE(controller.Waiting());
  Response x = Ordered("x", Allreduce("x").request);
  x.key.first = 1;
  controller.Receive(0, FrameOf(std::move(x)), 0);
  EXPECT_FALSE(controller.RelaysForOthers());

  controller.Receive(3, VoteOf(3, 1, "y"), 0);
  EXPECT_TRUE(controller.RelaysForOthers());
  Response remove = Ordered("r", [] {
    Request request;
    request.kind = OpKind::kRemoveSet;
    request.removed_set = 1;
    return request;
  }());
  controller.Receive(0, FrameOf(std::move(remove)), 0);
  EXPECT_FALSE(controller.RelaysForOthers());
}

// api/set_calls.cc makes these requests and rejects invalid ones.
TEST(Controller, InvalidSetChangeIsABug) {
  const auto change = [](OpKind kind, int32_t set, std::vector<int32_t> ranks,
                         const Status& local_error = {}) {
    Entry entry = Allreduce("s");
    entry.set = set;
    entry.request.kind = kind;
    entry.request.ranks = std::move(ranks);
    entry.local_error = local_error;
    Host host;
    Controller controller(TwoNodes(1), StallOptions(), &host, &host);
    Request pair;
    pair.kind = OpKind::kAddSet;
    pair.ranks = {0, 1};
    Response add = Ordered("t", pair);
    add.value = 1;
    controller.Receive(0, FrameOf(std::move(add)), 0);
    controller.Admit(std::move(entry));
    return host.aborts.size();
  };
  EXPECT_EQ(change(OpKind::kAddSet, kWorldSet, {0, 3}), 0u);
  EXPECT_EQ(change(OpKind::kAddSet, kWorldSet, {}, InvalidArgument("refused")),
            0u);
  EXPECT_EQ(change(OpKind::kRemoveSet, kWorldSet, {}), 0u);
  for (const std::vector<int32_t>& ranks :
       {std::vector<int32_t>{}, {1, 1}, {2, 1}, {-1}, {0, 4}}) {
    EXPECT_EQ(change(OpKind::kAddSet, kWorldSet, ranks), 1u);
  }
  EXPECT_EQ(change(OpKind::kAddSet, 1, {0, 1}), 1u);
  EXPECT_EQ(change(OpKind::kRemoveSet, 1, {}), 1u);
}

TEST(Controller, SecondVoteOfAChildIsABug) {
  Host host;
  Controller controller(OneNode(), StallOptions(), &host, &host);
  for (const int rank : {1, 2, 1}) {
    EXPECT_TRUE(host.aborts.empty());
    controller.Receive(rank, VoteOf(rank, kWorldSet, "g"), 0);
  }
  ASSERT_EQ(host.aborts.size(), 1u);
  EXPECT_NE(host.aborts[0].text.find("two votes for 'g' from rank 1"),
            std::string::npos);
}

// A failed step is repeated while its call is still in progress.
TEST(Controller, AbandonedCallsAreNotDuplicates) {
  std::vector<std::string> ends(3);
  Host host;
  Controller controller(TwoNodes(3), StallOptions(), &host, &host);
  std::vector<std::shared_ptr<CallerState>> callers;
  for (size_t i = 0; i < ends.size(); ++i) {
    Entry entry = Allreduce("g");
    callers.push_back(std::make_shared<CallerState>());
    entry.caller = callers.back();
    entry.done = Completion([&ends, i](const Status& status, int32_t) {
      ends[i] = status.ok() ? "ok" : status.message();
    });
    controller.Admit(std::move(entry));
    if (i == 0) callers[0]->GiveUp();
  }
  EXPECT_EQ(ends[0], "");
  EXPECT_EQ(ends[1], "");
  EXPECT_EQ(ends[2].substr(0, 14), "duplicate name");
  // No caller waits for the first one, but it is still sent to the other ranks.
  ASSERT_EQ(host.sent.size(), 1u);
  const std::string batch = FrameOf(Ordered("g", Allreduce("g").request));
  controller.Receive(2, batch, kSecond);
  controller.Receive(2, batch, kSecond);
  ASSERT_EQ(host.runs.size(), 2u);
  EXPECT_TRUE(host.runs[0].own.has_value());
  EXPECT_TRUE(host.runs[1].own.has_value());
  EXPECT_EQ(controller.own().executing().size(), 2u);
  controller.Finished({kWorldSet, "g"});
  controller.Finished({kWorldSet, "g"});
  EXPECT_TRUE(controller.own().executing().empty());
}

}  // namespace
}  // namespace tf_hvd