// A single controller's questions, answers and reports about waits that do not
// end.
#include "runtime/agreement/stall_monitor.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/runtime/single_controller.h"

namespace tf_hvd {
namespace {

// The rank that should send the query does not. The waiting rank names it,
// first in a warning and then in the text that the job ends with.
TEST(StallMonitor, NamesSilentRanksAbove) {
  Host host;
  Controller controller(TwoNodes(3), StallOptions(), &host, &host);
  controller.Admit(Allreduce("g"));
  for (int64_t s = 1; s <= 40; ++s) controller.Tick(s * kSecond);
  const std::string silent =
      "; no answer from rank 2 (b) or rank 0 (a) (stopped, or its machine "
      "cannot be reached), which should report the missing ranks";
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

// A rank that repeats its question in less time than two answers take has still
// never had an answer.
TEST(StallMonitor, NamesSilentRanksAboveAtShortLimits) {
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
            "0 (a) (stopped, or its machine cannot be reached), which "
            "should report the missing ranks");
}

// A query that arrives shows that the ranks above are alive.
TEST(StallMonitor, NamesNoRankThatHasAnswered) {
  StallOptions options;
  options.fail_ns = 300 * kSecond;
  Host host;
  Controller controller(TwoNodes(3), options, &host, &host);
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

// If a question comes shortly before the limit, its report also comes before
// the limit. The next one would be due only after the waiting ranks' own limit.
TEST(StallMonitor, AsksAgainAfterTheLimit) {
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

// For rank 1; empty: it does not answer.
using AnswerAt = std::function<std::optional<StallAnswer>(int64_t s)>;

// Rank 0 waits from the first second until the job ends, for `until_s` at most.
Host WaitsForRankOne(const AnswerAt& answer_at, int64_t until_s,
                     const StallOptions& options = StallOptions()) {
  Host host;
  Controller controller(TwoRanks(), options, &host, &host);
  controller.Admit(Allreduce("g"));
  for (int64_t s = 2; s <= until_s && host.aborts.empty(); ++s) {
    controller.Tick(s * kSecond);
    for (const auto& [neighbour, query] : std::exchange(host.sent, {})) {
      std::optional<StallAnswer> answer = answer_at(s);
      if (query.kind != MessageKind::kQuery || !answer.has_value()) continue;
      Message message;
      message.kind = MessageKind::kAnswer;
      message.name = query.name;
      message.query = query.query;
      message.answer = std::move(*answer);
      controller.Receive(neighbour, EncodeMessage(message), s * kSecond);
    }
  }
  return host;
}

StallAnswer MissingRankOne(const std::string& waits_for, int64_t stuck_s) {
  StallAnswer answer;
  answer.missing = RankList({1});
  WaitGroup group;
  group.waits_for = waits_for;
  group.ranks = answer.missing;
  answer.waits.push_back(group);
  answer.stuck_ms = static_cast<uint32_t>(stuck_s * 1000);
  return answer;
}

// Has waited in another call since the 11th second, which rank 0 has not made.
std::optional<StallAnswer> WaitsToo(int64_t s) {
  return MissingRankOne("'h' (world)", s - 11);
}

std::optional<StallAnswer> AtWork(int64_t) { return MissingRankOne("", 0); }

std::optional<StallAnswer> IsSilent(int64_t) { return std::nullopt; }

StallOptions UsersLimit(int64_t s) {
  StallOptions options;
  options.fail_ns = options.stuck_ns = s * kSecond;
  return options;
}

// Evaluations, downloads and checkpoints of more than 300 s are normal.
TEST(StallMonitor, WaitsHalfAnHourForABusyRank) {
  const Host host = WaitsForRankOne(AtWork, 2000);
  EXPECT_EQ(host.warnings.size(), 59u);
  ASSERT_EQ(host.aborts.size(), 1u);
  EXPECT_EQ(host.aborts[0].rank, 1);
  EXPECT_NE(host.aborts[0].text.find("stall: 'g' (world) waited 1802 s: "),
            std::string::npos)
      << host.aborts[0].text;
  EXPECT_NE(host.aborts[0].text.find(". If a rank needs longer"),
            std::string::npos);
}

TEST(StallMonitor, WaitsFiveMinutesForARankWithoutAnAnswer) {
  const Host host = WaitsForRankOne(IsSilent, 2000);
  ASSERT_EQ(host.aborts.size(), 1u);
  EXPECT_EQ(host.aborts[0].rank, 1);
  EXPECT_NE(host.aborts[0].text.find("waited 302 s: submitted by rank 0 (a); "
                                     "no answer from rank 1 (a)"),
            std::string::npos)
      << host.aborts[0].text;
}

// All ranks wait, the last of them since the 11th second.
TEST(StallMonitor, RanksThatWaitForEachOtherEndFiveMinutesAfterTheLastCall) {
  const Host host = WaitsForRankOne(WaitsToo, 2000);
  ASSERT_EQ(host.aborts.size(), 1u);
  EXPECT_EQ(host.aborts[0].rank, 1);
  EXPECT_NE(host.aborts[0].text.find(
                "rank 1 waits for 'h' (world); each rank waits for a call that "
                "another rank has not made, and no rank has made a call for 3"),
            std::string::npos)
      << host.aborts[0].text;
  EXPECT_LT(host.warnings.size(), 12u);
}

TEST(StallMonitor, UserLimitAppliesToAllWaits) {
  for (const AnswerAt& answer :
       {AnswerAt(AtWork), AnswerAt(IsSilent), AnswerAt(WaitsToo)}) {
    for (const int64_t limit_s : {60, 900}) {
      const Host host = WaitsForRankOne(answer, 2000, UsersLimit(limit_s));
      ASSERT_EQ(host.aborts.size(), 1u);
      const std::string waited =
          "waited " + std::to_string(limit_s + 2) + " s: ";
      EXPECT_NE(host.aborts[0].text.find(waited), std::string::npos)
          << host.aborts[0].text;
    }
  }
}

TEST(StallMonitor, UserCanDisableTheLimit) {
  for (const AnswerAt& answer :
       {AnswerAt(AtWork), AnswerAt(IsSilent), AnswerAt(WaitsToo)}) {
    EXPECT_TRUE(WaitsForRankOne(answer, 2000, UsersLimit(0)).aborts.empty());
  }
}

// Silence counts from the last answer, not from the start of the wait.
TEST(StallMonitor, ShortStopOfABusyRankDoesNotEndTheJob) {
  const Host host = WaitsForRankOne(
      [](int64_t s) { return s > 400 && s < 650 ? std::nullopt : AtWork(s); },
      1000);
  EXPECT_TRUE(host.aborts.empty());
  EXPECT_NE(host.warnings[15].find("no answer from rank 1"), std::string::npos);
  EXPECT_EQ(host.warnings.back().find("no answer"), std::string::npos);
}

TEST(StallMonitor, WaitsFiveMinutesForABusyRankThatStops) {
  const Host host = WaitsForRankOne(
      [](int64_t s) { return s > 400 ? std::nullopt : AtWork(s); }, 2000);
  ASSERT_EQ(host.aborts.size(), 1u);
  EXPECT_NE(host.aborts[0].text.find("no answer from rank 1"),
            std::string::npos);
  EXPECT_EQ(host.warnings.size(), 22u);  // one each 30 s
}

// The answer of rank 1, which is missing, to the first query about "g".
StallAnswer AnswerOfRankOne(Host* host, int64_t asked_s, bool early,
                            const std::vector<Entry>& calls) {
  Topology topology = TwoRanks();
  topology.rank = 1;
  Controller controller(topology, StallOptions(), host, host);
  for (const Entry& call : calls) {
    Entry copy = Allreduce(call.name);
    copy.submitted_ns = call.submitted_ns;
    controller.Admit(std::move(copy));
  }
  Message query;
  query.kind = MessageKind::kQuery;
  query.name = "g";
  query.query = 1;
  query.early = early;
  host->sent.clear();
  controller.Receive(0, EncodeMessage(query), asked_s * kSecond);
  if (!host->place.empty() && !early) {
    EXPECT_TRUE(host->sent.empty());
    EXPECT_LT(controller.due_ns(), (asked_s + 1) * kSecond);
    controller.Tick(controller.due_ns() - 1);
    EXPECT_TRUE(host->sent.empty());
    host->place = "train.py, line 12, in main";
    controller.Tick(controller.due_ns());
  }
  EXPECT_EQ(host->sent.size(), 1u);
  return host->sent.back().second.answer;
}

// The program answers a moment after the request.
TEST(StallMonitor, MissingRankReportsItsLine) {
  Host host;
  host.place = "not yet";
  const StallAnswer answer = AnswerOfRankOne(&host, 31, false, {});
  ASSERT_EQ(answer.waits.size(), 1u);
  EXPECT_EQ(answer.waits[0].place, "train.py, line 12, in main");
  EXPECT_EQ(answer.stuck_ms, 0u);
}

// Only for a warning: a compiled step asks after two seconds.
TEST(StallMonitor, ProgramIsNotInterruptedBeforeAWarningIsDue) {
  Host host;
  host.place = "here";
  AnswerOfRankOne(&host, 3, true, {});
}

TEST(StallMonitor, RankReportsItsWaitingTime) {
  Host host;
  std::vector<Entry> calls;
  calls.push_back(Allreduce("h"));  // in the first second
  calls.push_back(Allreduce("i"));
  calls.back().submitted_ns = 21 * kSecond;
  EXPECT_EQ(AnswerOfRankOne(&host, 31, false, calls).stuck_ms, 10'000u);
  host.compiling = "step";
  EXPECT_EQ(AnswerOfRankOne(&host, 31, false, calls).stuck_ms, 0u);
}

// The rank that it waits for, outside the set, may be busy.
TEST(StallMonitor, RankWaitingOutsideTheSetIsNotStuck) {
  Host host;
  Controller controller(TwoNodes(3), StallOptions(), &host, &host);
  Entry add = Allreduce("add");
  add.request = Request();
  add.request.kind = OpKind::kAddSet;
  add.request.ranks = {2, 3};
  Response added = Ordered("add", add.request);
  added.value = 1;
  controller.Receive(2, FrameOf(std::move(added)), kSecond);
  const auto stuck_ms = [&](int32_t waits_in, int32_t asked) {
    Entry call = Allreduce("h" + std::to_string(waits_in));
    call.set = waits_in;
    controller.Admit(std::move(call));
    Message query;
    query.kind = MessageKind::kQuery;
    query.set = asked;
    query.name = "g";
    controller.Receive(2, EncodeMessage(query), 31 * kSecond);
    return host.sent.back().second.answer.stuck_ms;
  };
  EXPECT_EQ(stuck_ms(kWorldSet, 1), 0u);
  EXPECT_EQ(stuck_ms(kWorldSet, kWorldSet), 30'000u);
  EXPECT_EQ(stuck_ms(1, kWorldSet), 30'000u);
  EXPECT_EQ(stuck_ms(1, 1), 30'000u);
}

// Rank 0 calls in a compiled step; rank 1 is missing and is in the given state.
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

// The names in a compiled step differ: ranks used to wait until the limit.
TEST(StallMonitor, ReportsACompilationMismatchWithinSeconds) {
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

// A rank that has compiled something is at a different line of the program.
TEST(StallMonitor, NoEarlyReportForACompilingRank) {
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

// A long compilation used to be reported as missing calls.
TEST(StallMonitor, DistinguishesCompilationFromAStall) {
  WaitGroup waits;
  waits.compiling = "step";
  const Host host = CompiledOnRankZero(waits, 35);
  ASSERT_EQ(host.warnings.size(), 1u);
  EXPECT_EQ(
      host.warnings[0],
      "slow compilation: 'step/g' (world) waited 32 s: submitted by rank "
      "0 (a); missing rank 1 (a); rank 1 has begun to compile 'step' "
      "and made no call since. XLA compiles a step at its first call, "
      "and again for each new shape of its inputs (for a smaller last batch, "
      "use drop_remainder=True). Raise HOROVOD_STALL_SHUTDOWN_TIME_SECONDS "
      "if compiling takes longer");
}

TEST(StallMonitor, MissingRankReportsItsCompilation) {
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

// If more steps wait than there are threads, others cannot start.
TEST(StallMonitor, DeadlockedCompiledStepsAreAdvisedAboutThreads) {
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

TEST(StallMonitor, WarnsOfCompiledCallsAsUsual) {
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
  answer.answer.waits.push_back({waits_for, self, false, false, "", ""});
  return EncodeMessage(answer);
}

// The messages of this kind that the controller has sent up.
std::vector<const Message*> SentUp(const Host& host, MessageKind kind) {
  std::vector<const Message*> messages;
  for (const auto& [neighbour, message] : host.sent) {
    if (neighbour == 0 && message.kind == kind) messages.push_back(&message);
  }
  return messages;
}

// However many ranks are below: one answer goes up, when all have answered.
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

// A rank below is stopped: the answers of the others go up in time, with the
// name of the silent rank.
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
  // It arrives too late for this query, and does not answer the next.
  controller.Receive(0, QueryOf("g", 8), 61 * kSecond);
  controller.Receive(3, AnswerOf(3, "g", 7, ""), 61 * kSecond);
  controller.Receive(2, AnswerOf(2, "g", 8, ""), 61 * kSecond);
  controller.Receive(4, AnswerOf(4, "g", 8, ""), 61 * kSecond);
  EXPECT_EQ(SentUp(host, MessageKind::kAnswer).size(), 1u);
  controller.Receive(3, AnswerOf(3, "g", 8, ""), 61 * kSecond);
  EXPECT_EQ(SentUp(host, MessageKind::kAnswer).size(), 2u);
}

// However many ranks ask, one question goes up, and none if the query has just
// arrived.
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

// The limit for ordered requests counts from the last progress, however long
// the caller has waited before.
TEST(StallMonitor, ExecutionLimitCountsFromTheLastProgress) {
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
            "no data from rank 1 (a) (stopped, unreachable, or itself waiting "
            "for another rank); seen by rank 3 "
            "(b)");
}

// A rank on this node may wait for another node, and knows which rank: its text
// is better. An unplugged cable used to be blamed on this node's rank that
// waited for the other node.
TEST(StallMonitor, RankWaitingForAnotherNodeReportsFirst) {
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
