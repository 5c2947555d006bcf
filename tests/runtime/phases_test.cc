#include "runtime/events/phases.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <thread>
#include <vector>

namespace tf_hvd {
namespace {

constexpr int64_t kUs = 1000;

std::vector<PhaseSpan> TakeAll(PhaseLog* log) {
  std::vector<PhaseSpan> spans;
  log->Take(&spans);
  return spans;
}

TEST(PhaseLogTest, SpansAreIgnoredWhileOff) {
  PhaseLog log;
  EXPECT_FALSE(log.on());
  log.Add({1, 0, 10, Phase::kPack, -1});
  log.Start();
  log.Add({2, 0, 10, Phase::kPack, -1});
  log.Stop();
  log.Add({3, 0, 10, Phase::kPack, -1});
  const auto spans = TakeAll(&log);
  ASSERT_EQ(spans.size(), 1u);
  EXPECT_EQ(spans[0].operation, 2u);
  EXPECT_EQ(log.dropped(), 0u);
}

TEST(PhaseLogTest, SpansAreDroppedAndCountedWithoutRoom) {
  PhaseLog log;
  log.Start();
  for (uint64_t i = 0; i < PhaseLog::kSpans + 7; ++i) {
    log.Add({i, 0, 1, Phase::kReduce, -1});
  }
  EXPECT_EQ(log.dropped(), 7u);
  EXPECT_EQ(TakeAll(&log).size(), PhaseLog::kSpans);
  log.Add({99, 0, 1, Phase::kReduce, -1});
  const auto spans = TakeAll(&log);
  ASSERT_EQ(spans.size(), 1u);
  EXPECT_EQ(spans[0].operation, 99u);
}

TEST(PhaseLogTest, SpansAreInOrderDuringConcurrentReads) {
  PhaseLog log;
  log.Start();
  constexpr uint64_t kCount = 300'000;
  std::thread writer([&log] {
    for (uint64_t i = 1; i <= kCount; ++i) {
      log.Add({i, static_cast<int64_t>(i), 0, Phase::kPack, -1});
    }
    log.Add({0, 0, 0, Phase::kWait, 0});
  });
  uint64_t last = 0;
  uint64_t seen = 0;
  std::vector<PhaseSpan> spans;
  while (last < kCount) {
    spans.clear();
    log.Take(&spans);
    for (const PhaseSpan& span : spans) {
      if (span.operation == 0) continue;
      ASSERT_GT(span.operation, last);
      ASSERT_EQ(span.begin_ns, static_cast<int64_t>(span.operation));
      last = span.operation;
      ++seen;
    }
    if (seen + log.dropped() >= kCount) break;
  }
  writer.join();
  spans.clear();
  log.Take(&spans);
  for (const PhaseSpan& span : spans) seen += span.operation != 0 ? 1 : 0;
  EXPECT_GE(seen + log.dropped(), kCount);
  EXPECT_LE(seen + log.dropped(), kCount + 1);
}

TEST(PhaseTimerTest, AdjacentPhasesAreMerged) {
  PhaseLog log;
  log.Start();
  PhaseTimer timer(&log, 5);
  timer.Enter(100 * kUs);
  timer.Did(Phase::kPack, 150 * kUs);
  timer.Did(Phase::kPack, 200 * kUs);
  timer.Exit(-1, 200 * kUs);
  timer.Enter(201 * kUs);
  timer.Did(Phase::kPack, 250 * kUs);
  timer.Did(Phase::kReduce, 300 * kUs);
  timer.Exit(-1, 300 * kUs);
  timer.Flush();
  const auto spans = TakeAll(&log);
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0].operation, 5u);
  EXPECT_EQ(spans[0].phase, Phase::kPack);
  EXPECT_EQ(spans[0].begin_ns, 100 * kUs);
  EXPECT_EQ(spans[0].end_ns, 250 * kUs);
  EXPECT_EQ(spans[1].phase, Phase::kReduce);
  EXPECT_EQ(spans[1].begin_ns, 250 * kUs);
  EXPECT_EQ(spans[1].end_ns, 300 * kUs);
}

TEST(PhaseTimerTest, WaitEndsWithDataOrAnotherRank) {
  PhaseLog log;
  log.Start();
  PhaseTimer timer(&log, 1);
  timer.Enter(0);
  timer.Did(Phase::kPack, 100 * kUs);
  timer.Exit(3, 100 * kUs);
  for (int64_t now = 150; now < 1000; now += 50) {  // nothing happens
    timer.Enter(now * kUs);
    timer.Exit(3, (now + 1) * kUs);
  }
  timer.Enter(1000 * kUs);
  timer.Exit(2, 1001 * kUs);  // rank 3's data has arrived
  timer.Enter(1500 * kUs);
  timer.Did(Phase::kReduce, 1600 * kUs);
  timer.Exit(-1, 1600 * kUs);
  timer.Flush();
  const auto spans = TakeAll(&log);
  ASSERT_EQ(spans.size(), 4u);
  EXPECT_EQ(spans[1].phase, Phase::kWait);
  EXPECT_EQ(spans[1].awaited, 3);
  EXPECT_EQ(spans[1].begin_ns, 100 * kUs);
  EXPECT_EQ(spans[1].end_ns, 1001 * kUs);
  EXPECT_EQ(spans[2].awaited, 2);
  EXPECT_EQ(spans[2].end_ns, 1500 * kUs);
  EXPECT_EQ(spans[3].phase, Phase::kReduce);
  EXPECT_EQ(spans[3].begin_ns, 1500 * kUs);
}

TEST(PhaseTimerTest, WaitAtTheEndIsRecorded) {
  PhaseLog log;
  log.Start();
  PhaseTimer timer(&log, 1);
  timer.Enter(0);
  timer.Exit(1, 1 * kUs);
  timer.Enter(500 * kUs);
  timer.Exit(-1, 501 * kUs);
  timer.Flush();
  const auto spans = TakeAll(&log);
  ASSERT_EQ(spans.size(), 1u);
  EXPECT_EQ(spans[0].phase, Phase::kWait);
  EXPECT_EQ(spans[0].end_ns, 501 * kUs);
}

TEST(PhaseTimerTest, ShortWaitIsIgnored) {
  PhaseLog log;
  log.Start();
  PhaseTimer timer(&log, 1);
  timer.Enter(0);
  timer.Did(Phase::kPack, 50 * kUs);
  timer.Exit(1, 50 * kUs);
  timer.Enter(55 * kUs);
  timer.Did(Phase::kReduce, 80 * kUs);
  timer.Flush();
  EXPECT_EQ(TakeAll(&log).size(), 2u);
}

}  // namespace
}  // namespace tf_hvd
