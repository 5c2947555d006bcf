#include "runtime/agreement/clock_offset.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <deque>
#include <limits>
#include <random>
#include <vector>

#include "base/clock.h"

namespace tf_hvd {
namespace {

constexpr int64_t kHour = 3600 * kSecond;
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

// A chain of ranks, each the parent of the next, with separate clocks that run
// too fast or too slow, and messages with delays.
class Chain {
 public:
  Chain(uint32_t seed, std::vector<int64_t> ahead, std::vector<double> pace,
        int64_t slowest_ns)
      : random_(seed),
        ahead_(std::move(ahead)),
        pace_(std::move(pace)),
        slowest_ns_(slowest_ns) {
    for (size_t i = 0; i < ahead_.size(); ++i)
      ranks_.emplace_back(i == 0, false);
  }

  ClockOffset& rank(size_t i) { return ranks_[i]; }

  int64_t Clock(size_t i, int64_t true_ns) const {
    return true_ns + ahead_[i] +
           static_cast<int64_t>(pace_[i] * static_cast<double>(true_ns));
  }

  void RunUntil(int64_t end_ns) {
    for (; now_ns_ < end_ns; now_ns_ += 100 * kUs) {
      for (size_t i = 1; i < ranks_.size(); ++i) Turn(i);
    }
  }

  void ExpectRight() const {
    for (size_t i = 0; i < ranks_.size(); ++i) {
      const ClockOffset::Known known = ranks_[i].known();
      ASSERT_GE(known.error_ns, 0) << i;
      const int64_t wrong =
          Clock(i, now_ns_) + known.offset_ns - Clock(0, now_ns_);
      // Plus the clocks' drift since the last reading.
      EXPECT_LE(std::abs(wrong), known.error_ns + 200 * kUs) << i;
    }
  }

  int asked() const { return asked_; }

 private:
  void Turn(size_t i) {
    if (Clock(i, now_ns_) < ranks_[i].due_ns()) return;
    ++asked_;
    const ClockReading question = ranks_[i].Ask(Clock(i, now_ns_));
    const int64_t there_ns = now_ns_ + Delay();
    const ClockReading answer =
        ranks_[i - 1].Answer(question, Clock(i - 1, there_ns));
    const int64_t back_ns = there_ns + Delay();
    ranks_[i].Take(answer, Clock(i, back_ns));
  }

  int64_t Delay() {
    return std::uniform_int_distribution<int64_t>(20 * kUs,
                                                  slowest_ns_)(random_);
  }

  std::mt19937 random_;
  const std::vector<int64_t> ahead_;
  const std::vector<double> pace_;
  const int64_t slowest_ns_;
  std::deque<ClockOffset> ranks_;
  int64_t now_ns_ = kSecond;
  int asked_ = 0;
};

TEST(ClockOffsetTest, ErrorIsWithinItsBound) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    Chain chain(seed, {0, kHour, -3 * kHour, 17}, {0, 20e-6, -20e-6, 10e-6},
                2 * kMs);
    chain.rank(3).Want(true);
    for (int64_t until_ns = 2 * kSecond; until_ns < 20 * kSecond;
         until_ns += kSecond) {
      chain.RunUntil(until_ns);
      chain.ExpectRight();
    }
  }
}

TEST(ClockOffsetTest, UsesTheFastestReading) {
  ClockOffset offset(false, false);
  offset.Want(true);
  // The question was delayed by 10 ms.
  offset.Take({1'000'000, 12'000'000, 0, 0}, 13'000'000);
  EXPECT_EQ(offset.known().error_ns, 6'000'000);
  offset.Take({20'000'000, 21'000'000, 0, 0}, 20'100'000);
  EXPECT_EQ(offset.known().offset_ns, 950'000);
  EXPECT_EQ(offset.known().error_ns, 50'000);
  offset.Take({30'000'000, 42'000'000, 0, 0}, 43'000'000);
  EXPECT_EQ(offset.known().offset_ns, 950'000);
}

TEST(ClockOffsetTest, ParentsErrorIsAdded) {
  ClockOffset offset(false, false);
  offset.Take({100, 1200, 5000, 30}, 300);
  EXPECT_EQ(offset.known().offset_ns, 1000 + 5000);
  EXPECT_EQ(offset.known().error_ns, 100 + 30);
}

TEST(ClockOffsetTest, OffsetIsUnknownUntilTheParentKnowsIts) {
  ClockOffset top(true, false);
  EXPECT_EQ(top.known().error_ns, 0);
  ClockOffset middle(false, false);
  ClockOffset low(false, false);
  low.Take(middle.Answer(low.Ask(10), 20), 30);
  EXPECT_LT(low.known().error_ns, 0);
  middle.Take(top.Answer(middle.Ask(30), 40), 50);
  low.Take(middle.Answer(low.Ask(60), 70), 80);
  EXPECT_GE(low.known().error_ns, 0);
}

TEST(ClockOffsetTest, RanksOfOneMachineShareTheClock) {
  ClockOffset same(false, true);
  same.Take({1000, 1300, 0, 0}, 1400);
  EXPECT_EQ(same.known().offset_ns, 0);
  EXPECT_EQ(same.known().error_ns, 0);
  // Not true in a container with a separate time namespace.
  ClockOffset other(false, true);
  other.Take({1000, kHour, 0, 0}, 1400);
  EXPECT_EQ(other.known().offset_ns, kHour - 1200);
  EXPECT_EQ(other.known().error_ns, 200);
}

TEST(ClockOffsetTest, NoQuestionsUnlessWanted) {
  ClockOffset top(true, false);
  top.Want(true);
  EXPECT_EQ(top.due_ns(), kNever);
  Chain chain(1, {0, 0, 0}, {0, 0, 0}, 100 * kUs);
  chain.RunUntil(3 * kSecond);
  EXPECT_EQ(chain.asked(), 0);
  chain.rank(1).Want(true);  // no rank above or below asks because of this
  chain.RunUntil(13 * kSecond);
  EXPECT_GE(chain.asked(), 10 + 8);
  EXPECT_LE(chain.asked(), 10 + 11);
  EXPECT_EQ(chain.rank(2).due_ns(), kNever);
  chain.rank(1).Want(false);
  const int before = chain.asked();
  chain.RunUntil(20 * kSecond);
  EXPECT_EQ(chain.asked(), before);
}

TEST(ClockOffsetTest, WantBelowKeepsParentsMeasuring) {
  Chain chain(1, {0, 5, 7}, {0, 0, 0}, 100 * kUs);
  chain.rank(2).Want(true);
  chain.RunUntil(3 * kSecond);
  chain.ExpectRight();
  chain.rank(2).Want(false);
  chain.RunUntil(10 * kSecond);
  EXPECT_EQ(chain.rank(1).due_ns(), kNever);
}

}  // namespace
}  // namespace tf_hvd
