// What a single controller asks, answers and says of waits that do not end.
#include "runtime/agreement/stall_monitor.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/runtime/single_controller.h"

namespace tf_hvd {
namespace {

// Whoever should send the query does not: the waiter says who that is, first in
// a warning and then in the text that the job ends with.
TEST(StallMonitor, NamesThoseAboveWhoDoNotAnswer) {
  Host host;
  Controller controller(TwoNodes(3), StallOptions(), &host, &host);
  controller.Admit(Allreduce("g"));
  for (int64_t s = 1; s <= 40; ++s) controller.Tick(s * kSecond);
  const std::string silent =
      "; no answer from rank 2 (b) or rank 0 (a) (stopped, or its machine "
      "cannot be reached), who should tell which ranks are missing";
  ASSERT_EQ(host.warnings.size(), 1u);
  EXPECT_EQ(host.warnings[0], "stall: 'g' (world) waited 34 s" + silent);
  for (int64_t s = 41; s <= 320 && host.aborts.empty(); ++s) {
    controller.Tick(s * kSecond);
  }
  ASSERT_EQ(host.aborts.size(), 1u);
  EXPECT_EQ(host.aborts[0].text, "'g' (world) got no decision within 310 s" +
                                     silent + "; seen by rank 3 (b)");
  EXPECT_EQ(host.aborts[0].rank, 2);
}

// Who asks again after a shorter time than two answers have asked for one that
// never came all the same.
TEST(StallMonitor, NamesThoseAboveAtShortLimits) {
  StallOptions options;
  options.warn_ns = 3 * kSecond;
  options.fail_ns = options.grace_ns = 8 * kSecond;
  Host host;
  Controller controller(TwoNodes(3), options, &host, &host);
  controller.Admit(Allreduce("g"));
  for (int64_t s = 1; s <= 20 && host.aborts.empty(); ++s) {
    controller.Tick(s * kSecond);
  }
  ASSERT_EQ(host.aborts.size(), 1u);
  EXPECT_EQ(host.aborts[0].rank, 2);
  ASSERT_FALSE(host.warnings.empty());
  EXPECT_EQ(host.warnings[0],
            "stall: 'g' (world) waited 7 s; no answer from rank 2 (b) or rank "
            "0 (a) (stopped, or its machine cannot be reached), who should "
            "tell which ranks are missing");
}

// A query that comes shows that those above are there.
TEST(StallMonitor, NamesNobodyWhoHasAnswered) {
  Host host;
  Controller controller(TwoNodes(3), StallOptions(), &host, &host);
  controller.Admit(Allreduce("g"));
  Message query;
  query.kind = MessageKind::kQuery;
  query.name = "g";
  for (int64_t s = 1; s <= 331; ++s) {
    const bool asked = s % 30 == 2 || (s > 301 && s % 2 == 0);
    if (asked) controller.Receive(2, EncodeMessage(query), s * kSecond);
    controller.Tick(s * kSecond);
  }
  EXPECT_EQ(host.warnings, std::vector<std::string>());
  EXPECT_TRUE(host.aborts.empty());
  controller.Tick(332 * kSecond);
  ASSERT_EQ(host.aborts.size(), 1u);
  EXPECT_EQ(host.aborts[0].text,
            "'g' (world) got no decision within 330 s; seen by rank 3 (b)");
}

// A question that came shortly before the limit was over has its report before
// the limit, too, and the next one is due only after the waiters' own limit.
TEST(StallMonitor, AsksAgainWhenTheLimitIsOver) {
  StallOptions options;
  options.warn_ns = 30 * kSecond;
  options.fail_ns = 40 * kSecond;
  Host host;
  Controller controller(TwoRanks(), options, &host, &host);
  controller.Admit(Allreduce("g"));  // waits since the first second
  for (int64_t s = 35; s <= 44 && host.aborts.empty(); ++s) {
    controller.Tick(s * kSecond);
  }
  ASSERT_EQ(host.warnings.size(), 1u);
  ASSERT_EQ(host.aborts.size(), 1u);
  EXPECT_EQ(host.aborts[0].rank, 1);
}

// Rank 0 calls from a compiled step, and rank 1, which is missing, does this.
Host CompiledOnRankZero(WaitGroup on_rank_one, int64_t until_s = 5) {
  Host host;
  Controller controller(TwoRanks(), StallOptions(), &host, &host);
  Entry call = Allreduce("step/g");  // waits since the first second
  call.request.compiled = true;
  controller.Admit(std::move(call));
  controller.Tick(2 * kSecond);
  EXPECT_TRUE(host.sent.empty());
  Message answer;
  answer.kind = MessageKind::kAnswer;
  answer.name = "step/g";
  answer.answer.missing = RankList({1});
  on_rank_one.ranks = RankList({1});
  answer.answer.waits.push_back(on_rank_one);
  for (int64_t s = 3; s <= until_s; ++s) {
    controller.Tick(s * kSecond);
    if (host.sent.empty()) continue;
    answer.query = host.sent.back().second.query;
    host.sent.clear();
    controller.Receive(1, EncodeMessage(answer), s * kSecond);
  }
  return host;
}

// The names of a compiled step are others: they were waited for until the
// limit.
TEST(StallMonitor, TellsRanksThatDifferInCompilingWithinSeconds) {
  WaitGroup waits;
  waits.waits_for = "'g' (world)";
  const Host host = CompiledOnRankZero(waits);
  ASSERT_EQ(host.aborts.size(), 1u);
  EXPECT_EQ(host.aborts[0].rank, 1);
  EXPECT_EQ(host.aborts[0].text,
            "mismatch in 'step/g' (world): rank 0 (a) calls it from a step "
            "that XLA compiles; rank 1 (a) waits for 'g' (world) outside of "
            "such a step; jit_compile must be the same on all ranks");
}

// A rank that has compiled something is at another place of the program.
TEST(StallMonitor, SaysNothingEarlyOfARankThatCompiles) {
  WaitGroup waits;
  waits.waits_for = "'g' (world)";
  for (const bool compiled : {true, false}) {
    waits.ever_compiled = compiled;
    waits.compiling = compiled ? "" : "step";
    const Host host = CompiledOnRankZero(waits);
    EXPECT_TRUE(host.aborts.empty());
    EXPECT_TRUE(host.warnings.empty());
  }
}

// A long compilation was reported as calls that are missing.
TEST(StallMonitor, TellsACompilationApartFromAStall) {
  WaitGroup waits;
  waits.compiling = "step";
  const Host host = CompiledOnRankZero(waits, 35);
  ASSERT_EQ(host.warnings.size(), 1u);
  EXPECT_EQ(host.warnings[0],
            "slow compilation: 'step/g' (world) waited 32 s: submitted by rank "
            "0 (a); missing rank 1 (a); rank 1 has begun to compile 'step' "
            "and made no call since. XLA compiles a step at its first call, "
            "and again for each new shape of its inputs (a smaller last batch: "
            "drop_remainder=True). Raise HOROVOD_STALL_SHUTDOWN_TIME_SECONDS "
            "if compiling takes longer");
}

TEST(StallMonitor, ARankThatIsMissingSaysWhatItCompiles) {
  Host host;
  Topology topology = TwoRanks();
  topology.rank = 1;
  Controller controller(topology, StallOptions(), &host, &host);
  Entry call = Allreduce("other/g");
  call.request.compiled = true;
  controller.Admit(std::move(call));
  host.compiling = "step";
  Message query;
  query.kind = MessageKind::kQuery;
  query.name = "step/g";
  query.query = 1;
  query.wait_ns = 2 * kSecond;
  controller.Receive(0, EncodeMessage(query), 3 * kSecond);
  ASSERT_FALSE(host.sent.empty());
  const StallAnswer& answer = host.sent.back().second.answer;
  ASSERT_EQ(answer.waits.size(), 1u);
  EXPECT_EQ(answer.waits[0].compiling, "step");
  EXPECT_TRUE(answer.waits[0].waits_in_compiled);
  EXPECT_EQ(answer.waits[0].waits_for, "'other/g' (world)");
}

// Where more steps wait than there are threads for, others cannot begin.
TEST(StallMonitor, CompiledStepsThatWaitForEachOtherAreToldOfThreads) {
  WaitGroup waits;
  waits.waits_for = "'other/g' (world)";
  waits.ever_compiled = true;
  waits.waits_in_compiled = true;
  const Host host = CompiledOnRankZero(waits, 35);
  ASSERT_EQ(host.warnings.size(), 1u);
  EXPECT_NE(host.warnings[0].find("; rank 1 waits for 'other/g' (world). Ranks "
                                  "must make the same"),
            std::string::npos)
      << host.warnings[0];
  EXPECT_NE(host.warnings[0].find("one of TensorFlow's inter-op threads"),
            std::string::npos)
      << host.warnings[0];
}

TEST(StallMonitor, WarnsOfACompiledCallAsOfOthers) {
  Host host;
  Controller controller(TwoRanks(), StallOptions(), &host, &host);
  Entry call = Allreduce("step/g");
  call.request.compiled = true;
  controller.Admit(std::move(call));
  for (int64_t s = 2; s <= 33; ++s) controller.Tick(s * kSecond);
  ASSERT_EQ(host.warnings.size(), 1u);
  EXPECT_NE(host.warnings[0].find("'step/g' (world) waited 32 s"),
            std::string::npos);
}

// The leader of node b, with three ranks below it.
Topology LeaderBelow() {
  Topology topology;
  topology.rank = 1;
  topology.size = 5;
  topology.nodes = {{0}, {1, 2, 3, 4}};
  topology.hosts = {"a", "b", "b", "b", "b"};
  return topology;
}

std::string QueryOf(const std::string& name, uint32_t number) {
  Message query;
  query.kind = MessageKind::kQuery;
  query.name = name;
  query.query = number;
  query.wait_ns = 2 * kSecond;
  return EncodeMessage(query);
}

std::string AnswerOf(int rank, const std::string& name, uint32_t number,
                     const std::string& waits_for) {
  const RankList self(std::vector<int>{rank});
  Message answer;
  answer.kind = MessageKind::kAnswer;
  answer.name = name;
  answer.query = number;
  answer.answer.missing = self;
  answer.answer.waits.push_back({waits_for, self, false, false, ""});
  return EncodeMessage(answer);
}

// What the controller has sent up of this kind.
std::vector<const Message*> SentUp(const Host& host, MessageKind kind) {
  std::vector<const Message*> messages;
  for (const auto& [neighbour, message] : host.sent) {
    if (neighbour == 0 && message.kind == kind) messages.push_back(&message);
  }
  return messages;
}

// As many as are below: one answer goes up, when all have answered.
TEST(StallMonitor, PassesUpOneAnswerForAllBelow) {
  Host host;
  Controller controller(LeaderBelow(), StallOptions(), &host, &host);
  controller.Admit(Allreduce("g"));
  controller.Receive(0, QueryOf("g", 7), 31 * kSecond);
  controller.Receive(2, AnswerOf(2, "g", 7, "'h' (world)"), 31 * kSecond);
  controller.Receive(4, AnswerOf(4, "g", 7, "'h' (world)"), 31 * kSecond);
  EXPECT_TRUE(SentUp(host, MessageKind::kAnswer).empty());
  controller.Receive(3, AnswerOf(3, "g", 7, ""), 31 * kSecond);
  const std::vector<const Message*> answers =
      SentUp(host, MessageKind::kAnswer);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0]->query, 7u);
  const StallAnswer& answer = answers[0]->answer;
  EXPECT_EQ(answer.voted.named, (std::vector<int32_t>{1}));
  EXPECT_EQ(answer.age_ms, 30'000u);
  EXPECT_EQ(answer.missing.named, (std::vector<int32_t>{2, 3, 4}));
  EXPECT_TRUE(answer.silent.empty());
  ASSERT_EQ(answer.waits.size(), 2u);
  EXPECT_EQ(answer.waits[0].waits_for, "'h' (world)");
  EXPECT_EQ(answer.waits[0].ranks.named, (std::vector<int32_t>{2, 4}));
  EXPECT_EQ(answer.waits[1].ranks.named, (std::vector<int32_t>{3}));
}

// A rank below is stopped: what the others have answered goes up in time, and
// says who has not.
TEST(StallMonitor, DoesNotWaitForASilentRankBelow) {
  Host host;
  Controller controller(LeaderBelow(), StallOptions(), &host, &host);
  controller.Receive(0, QueryOf("g", 7), 31 * kSecond);
  controller.Receive(2, AnswerOf(2, "g", 7, ""), 31 * kSecond);
  controller.Receive(4, AnswerOf(4, "g", 7, ""), 31 * kSecond);
  EXPECT_EQ(controller.due_ns(), 33 * kSecond);
  controller.Tick(controller.due_ns() - 1);
  EXPECT_TRUE(SentUp(host, MessageKind::kAnswer).empty());
  controller.Tick(controller.due_ns());
  const std::vector<const Message*> answers =
      SentUp(host, MessageKind::kAnswer);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0]->answer.missing.named, (std::vector<int32_t>{1, 2, 4}));
  EXPECT_EQ(answers[0]->answer.silent.named, (std::vector<int32_t>{3}));
  EXPECT_GT(controller.due_ns(), 1000 * kSecond);
  // It comes too late for this query, and is none to the next.
  controller.Receive(0, QueryOf("g", 8), 61 * kSecond);
  controller.Receive(3, AnswerOf(3, "g", 7, ""), 61 * kSecond);
  controller.Receive(2, AnswerOf(2, "g", 8, ""), 61 * kSecond);
  controller.Receive(4, AnswerOf(4, "g", 8, ""), 61 * kSecond);
  EXPECT_EQ(SentUp(host, MessageKind::kAnswer).size(), 1u);
  controller.Receive(3, AnswerOf(3, "g", 8, ""), 61 * kSecond);
  EXPECT_EQ(SentUp(host, MessageKind::kAnswer).size(), 2u);
}

// However many ranks ask, one question goes up, and none where the query has
// just come.
TEST(StallMonitor, PassesUpOneQuestionForAllBelow) {
  Host host;
  Controller controller(LeaderBelow(), StallOptions(), &host, &host);
  Message ask;
  ask.kind = MessageKind::kAsk;
  ask.name = "g";
  const std::string bytes = EncodeMessage(ask);
  for (const int child : {2, 3, 4}) controller.Receive(child, bytes, kSecond);
  EXPECT_EQ(SentUp(host, MessageKind::kAsk).size(), 1u);
  controller.Receive(2, bytes, 31 * kSecond);
  EXPECT_EQ(SentUp(host, MessageKind::kAsk).size(), 2u);
  controller.Receive(0, QueryOf("g", 1), 61 * kSecond);
  controller.Receive(2, bytes, 62 * kSecond);
  EXPECT_EQ(SentUp(host, MessageKind::kAsk).size(), 2u);
  controller.Receive(2, bytes, 63 * kSecond);
  EXPECT_EQ(SentUp(host, MessageKind::kAsk).size(), 3u);
}

// The limit of what is agreed counts from when it stopped moving, whatever the
// caller has waited before.
TEST(StallMonitor, ExecutionCountsFromItsLastMove) {
  Host host;
  Controller controller(TwoNodes(3), StallOptions(), &host, &host);
  controller.Admit(Allreduce("g"));
  controller.Tick(299 * kSecond);
  controller.Receive(2, FrameOf(Ordered("g", Allreduce("g").request)),
                     300 * kSecond);
  controller.Tick(300 * kSecond);
  controller.Tick(500 * kSecond);
  host.moves = 1;
  controller.Tick(600 * kSecond);
  host.waits_for = 1;
  controller.Tick(910 * kSecond);
  EXPECT_TRUE(host.aborts.empty());
  controller.Tick(911 * kSecond);
  ASSERT_EQ(host.aborts.size(), 1u);
  EXPECT_EQ(host.aborts[0].text,
            "'g' (world) was agreed by all ranks and has not moved for 310 s: "
            "no data from rank 1 (a) (stopped, or its machine cannot be "
            "reached, or it waits for another rank itself); seen by rank 3 "
            "(b)");
}

// A rank of one's own node may wait for another node, and knows whom for: its
// text is the better one. A cable that was unplugged was blamed on the own
// node's rank that waited for it.
TEST(StallMonitor, WhoWaitsForAnotherNodeSpeaksFirst) {
  Host host;
  Controller controller(TwoNodes(3), StallOptions(), &host, &host);
  controller.Admit(Allreduce("g"));
  controller.Receive(2, FrameOf(Ordered("g", Allreduce("g").request)),
                     1 * kSecond);
  host.waits_for = 2;
  host.moves = 1;
  controller.Tick(100 * kSecond);
  controller.Tick(420 * kSecond);
  EXPECT_TRUE(host.aborts.empty());
  controller.Tick(421 * kSecond);
  ASSERT_EQ(host.aborts.size(), 1u);
  EXPECT_NE(host.aborts[0].text.find("for 320 s: no data from rank 2 (b)"),
            std::string::npos);
}

}  // namespace
}  // namespace tf_hvd
