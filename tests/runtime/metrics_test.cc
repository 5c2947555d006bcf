#include "runtime/events/metrics.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/runtime/recorded_call.h"

namespace tf_hvd {
namespace {

constexpr int kRank = 1;
constexpr int kSize = 4;

RecordedCall Call(int64_t submitted, int64_t agreed, int64_t ended, int last) {
  RecordedCall call{};
  call.name.Set("x");
  call.submitted_ns = submitted;
  call.agreed_ns = agreed;
  call.ended_ns = ended;
  call.last = static_cast<uint16_t>(last + 1);
  return call;
}

CallReader::Step StepOf(std::vector<RecordedCall> calls, int64_t next) {
  CallReader::Step step;
  step.first_submitted_ns = calls.front().submitted_ns;
  step.next_ns = next;
  step.exposed = Exposure().Next(calls, next);
  step.calls = std::move(calls);
  return step;
}

MetricsTotals TotalsOf(const CallReader::Step& step) {
  MetricsTotals totals;
  totals.waiting_ns.resize(kSize);
  AddStep(step, kRank, &totals);
  return totals;
}

TEST(AddStepTest, HiddenTimeIsNotExposed) {
  const MetricsTotals totals =
      TotalsOf(StepOf({Call(10, 20, 40, 2), Call(100, 100, 101, kRank)}, 200));
  EXPECT_EQ(totals.steps, 1);
  EXPECT_EQ(totals.step_ns, 190);
  EXPECT_EQ(totals.collective_ns, 31);
  EXPECT_EQ(totals.transfer_ns, 1);
  EXPECT_EQ(totals.waiting_ns, std::vector<int64_t>({0, 0, 0, 0}));
}

TEST(AddStepTest, WaitIsForTheNextRankToCall) {
  const MetricsTotals totals =
      TotalsOf(StepOf({Call(10, 150, 170, 2), Call(100, 200, 230, 3)}, 400));
  EXPECT_EQ(totals.waiting_ns, std::vector<int64_t>({0, 0, 50, 30}));
  EXPECT_EQ(totals.transfer_ns, 50);
  EXPECT_EQ(totals.collective_ns, 220);
}

TEST(AddStepTest, EagerCallIsExposedBeforeTheLastOne) {
  RecordedCall loss = Call(10, 30, 40, 2);
  loss.caller = CallerKind::kWaits;
  const MetricsTotals totals =
      TotalsOf(StepOf({loss, Call(100, 100, 101, kRank)}, 200));
  EXPECT_EQ(totals.transfer_ns, 11);
  EXPECT_EQ(totals.waiting_ns, std::vector<int64_t>({0, 0, 20, 0}));
}

TEST(AddStepTest, CallThatFailedBeforeAgreementMovesNothing) {
  EXPECT_EQ(TotalsOf(StepOf({Call(10, 0, 50, -1)}, 60)).transfer_ns, 0);
}

bool IsExposed(const CallReader::Step& step, int64_t t) {
  return std::any_of(
      step.exposed.begin(), step.exposed.end(),
      [t](const Interval& one) { return one.first <= t && t < one.second; });
}

// Computed moment by moment, as an independent check.
MetricsTotals ByMoments(const CallReader::Step& step) {
  MetricsTotals totals;
  totals.waiting_ns.resize(kSize);
  int64_t until = 0;
  for (const auto& call : step.calls) until = std::max(until, call.ended_ns);
  for (int64_t t = 0; t < until; ++t) {
    const auto any = [&](auto is) {
      return std::any_of(step.calls.begin(), step.calls.end(), is);
    };
    totals.collective_ns +=
        t < step.next_ns && any([t](const auto& call) {
          return call.submitted_ns <= t && t < call.ended_ns;
        });
    if (!IsExposed(step, t)) continue;
    if (any([t](const auto& call) {
          return call.agreed_ns <= t && t < call.ended_ns;
        })) {
      ++totals.transfer_ns;
      continue;
    }
    const RecordedCall* next = nullptr;
    for (const RecordedCall& call : step.calls) {
      if (call.agreed_ns > t &&
          (next == nullptr || call.agreed_ns < next->agreed_ns)) {
        next = &call;
      }
    }
    if (next != nullptr && next->last > 0 && next->last != kRank + 1) {
      ++totals.waiting_ns[next->last - 1u];
    }
  }
  return totals;
}

TEST(AddStepTest, StepEqualsTheSumOfItsMoments) {
  std::mt19937 random(1);
  const auto upto = [&random](int64_t most) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(most));
  };
  for (int round = 0; round < 3000; ++round) {
    std::vector<RecordedCall> calls;
    for (int64_t i = 0, count = 1 + upto(5); i < count; ++i) {
      const int64_t submitted = 1 + upto(60), agreed = submitted + upto(40);
      calls.push_back(Call(submitted, agreed, agreed + upto(30),
                           static_cast<int>(upto(kSize + 1)) - 1));
    }
    // Calls that are agreed at the same moment have one that was last.
    for (RecordedCall& call : calls) {
      for (const RecordedCall& other : calls) {
        if (other.agreed_ns == call.agreed_ns) call.last = other.last;
      }
    }
    std::sort(calls.begin(), calls.end(), [](const auto& a, const auto& b) {
      return a.submitted_ns < b.submitted_ns;
    });
    const auto step = StepOf(calls, 60 + upto(100));
    const MetricsTotals found = TotalsOf(step), expected = ByMoments(step);
    ASSERT_EQ(found.collective_ns, expected.collective_ns) << round;
    ASSERT_EQ(found.transfer_ns, expected.transfer_ns) << round;
    ASSERT_EQ(found.waiting_ns, expected.waiting_ns) << round;
  }
}

class MetricsTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    recorder_ = Recorder::Make({}, {kRank, kSize, kRank, -1, "h", "job"}, &why);
    ASSERT_NE(recorder_, nullptr) << why;
    std::string name = testing::TempDir() + "/metrics.XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }

  void Make(const std::string& name, const Status& status = Status::Ok()) {
    recorder_->Add(CallOf(name)).Ended(status);
  }

  std::string Text() const {
    std::ifstream file(folder_ + "/metrics.rank-1.prom");
    return {std::istreambuf_iterator<char>(file), {}};
  }

  std::unique_ptr<Recorder> recorder_;
  std::string folder_;
};

TEST_F(MetricsTest, EachCallCountsOnce) {
  Make("before");
  Metrics metrics(recorder_.get(), kRank, kSize);
  for (int i = 0; i < 3000; ++i) {
    Make("x", i % 3 == 0 ? Internal("no") : Status::Ok());
    if (i % 100 == 0) metrics.Read();
  }
  MetricsTotals totals = metrics.Read();
  while (totals.calls < 3000)
    totals = metrics.Read();  // they arrive a bit later
  EXPECT_EQ(totals.calls, 3000);
  EXPECT_EQ(totals.failed, 1000);
  EXPECT_EQ(totals.bytes, 24000);
  EXPECT_EQ(totals.steps, 2999);
  EXPECT_EQ(totals.step_bytes, 2999 * 8);  // the last step has not ended
  EXPECT_EQ(totals.in_flight, 0);
  EXPECT_EQ(totals.dropped, 0);
}

TEST_F(MetricsTest, FileHasTheFinalTotals) {
  Metrics metrics(recorder_.get(), kRank, kSize);
  std::unique_ptr<MetricsFile> file;
  ASSERT_TRUE(
      MetricsFile::Start(folder_ + "/metrics.prom", &metrics, &file).ok());
  EXPECT_NE(Text().find("tf_hvd_calls_total{rank=\"1\"} 0\n"),
            std::string::npos);
  for (int i = 0; i < 5; ++i) Make("x");
  file.reset();
  EXPECT_NE(Text().find("tf_hvd_calls_total{rank=\"1\"} 5\n"),
            std::string::npos)
      << Text();
  EXPECT_NE(access((folder_ + "/metrics.rank-1.prom.new").c_str(), F_OK), 0);
}

TEST_F(MetricsTest, UnwritableFileIsAnError) {
  Metrics metrics(recorder_.get(), kRank, kSize);
  std::unique_ptr<MetricsFile> file;
  const Status status =
      MetricsFile::Start(folder_ + "/none/metrics.prom", &metrics, &file);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(file, nullptr);
}

}  // namespace
}  // namespace tf_hvd
