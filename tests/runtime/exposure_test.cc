#include "runtime/events/exposure.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "base/clock.h"

namespace tf_hvd {
namespace {

RecordedCall Call(const std::string& name, int64_t submitted, int64_t ended,
                  CallerKind caller = CallerKind::kGraph) {
  RecordedCall call{};
  call.name.Set(name);
  call.submitted_ns = submitted;
  call.ended_ns = ended;
  call.caller = caller;
  return call;
}

TEST(ExposureTest, GraphIsExposedFromItsLastCallOn) {
  EXPECT_EQ(Exposure().Next({Call("a", 10, 40), Call("b", 50, 60)}, 100),
            std::vector<Interval>({{50, 60}}));
  EXPECT_EQ(Exposure().Next({Call("a", 10, 80), Call("b", 50, 60)}, 100),
            std::vector<Interval>({{50, 80}}));
}

TEST(ExposureTest, ThreadThatMakesTheNextCallDoesNotWait) {
  EXPECT_EQ(Exposure().Next({Call("a", 10, 80)}, 70),
            std::vector<Interval>({{10, 70}}));
}

TEST(ExposureTest, EagerCallIsExposedWhileItLasts) {
  EXPECT_EQ(Exposure().Next({Call("a", 10, 40, CallerKind::kWaits),
                             Call("b", 50, 60, CallerKind::kWaits)},
                            100),
            std::vector<Interval>({{10, 40}, {50, 60}}));
}

// For example the loss of a step, which is read after the function has
// returned.
TEST(ExposureTest, GraphBeforeAnEagerCallIsExposedFromItsLastCallOn) {
  EXPECT_EQ(Exposure().Next({Call("a", 10, 20), Call("b", 30, 50),
                             Call("loss", 60, 70, CallerKind::kWaits)},
                            100),
            std::vector<Interval>({{30, 50}, {60, 70}}));
}

TEST(ExposureTest, RareCallAfterTheLastOneHidesNothing) {
  Exposure exposure;
  exposure.Next({Call("a", 10, 40)}, 100);
  EXPECT_EQ(exposure.Next({Call("a", 110, 140), Call("rare", 150, 160)}, 200),
            std::vector<Interval>({{110, 140}, {150, 160}}));
}

// As in XLA: the next call needs the first one's result, and not that of the
// second.
TEST(ExposureTest, CallStillInFlightWasNotWaitedFor) {
  Exposure exposure;
  std::vector<Interval> found;
  for (int64_t step = 0; step < 20; ++step) {
    const int64_t at = step * 100 * kMs;
    const int64_t late = (step * 7) % 20 * kMs;
    found = exposure.Next({Call("first", at, at + late + 10),
                           Call("second", at + 5, at + late + 3 * kMs),
                           Call("third", at + late + kMs, at + late + 4 * kMs)},
                          at + 100 * kMs);
  }
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].second, 1900 * kMs + 13 * kMs + 10);
}

// Steps with a call in the middle of a graph, and one at its end. Another rank
// is late for the first call, by a time that differs from step to step or is
// constant; `waits`: the graph has nothing to compute before the call has
// ended.
class Graph {
 public:
  Graph(bool waits, uint32_t seed) : waits_(waits), random_(seed) {}

  // The exposed share of the first call's duration.
  double Share(double late_ms, double late_jitter_ms, int steps) {
    double exposed = 0, all = 0;
    for (int step = 0; step < steps; ++step) {
      const double takes = late_ms + late_jitter_ms * Uniform() + 0.1;
      const double computes = 30 + Normal();
      const int64_t first = Ns(100.0 * step), ended = first + Ns(takes);
      const int64_t second = (waits_ ? ended : first) + Ns(computes);
      const auto parts = exposure_.Next(
          {Call("first", first, ended), Call("second", second, second + 10)},
          Ns(100.0 * (step + 1)));
      if (step < 10) continue;  // still learning
      all += takes;
      for (const auto& [from, until] : parts) {
        if (from < second) exposed += static_cast<double>(until - from) / kMs;
      }
    }
    return exposed / all;
  }

 private:
  static int64_t Ns(double ms) { return static_cast<int64_t>(ms * kMs); }
  double Uniform() { return std::uniform_real_distribution<double>()(random_); }
  double Normal() { return 0.3 * std::normal_distribution<double>()(random_); }

  const bool waits_;
  std::mt19937 random_;
  Exposure exposure_;
};

TEST(ExposureTest, WaitInTheMiddleOfAGraphIsDetected) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    EXPECT_GT(Graph(true, seed).Share(0, 20, 200), 0.99) << seed;
    EXPECT_GT(Graph(true, seed).Share(15, 4, 200), 0.9) << seed;
  }
}

TEST(ExposureTest, ComputingGraphIsNotCountedAsWaiting) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    EXPECT_LT(Graph(false, seed).Share(0, 20, 200), 0.01) << seed;
    EXPECT_LT(Graph(false, seed).Share(15, 4, 200), 0.01) << seed;
    EXPECT_LT(Graph(false, seed).Share(15, 0, 200), 0.01) << seed;
    EXPECT_LT(Graph(false, seed).Share(25, 20, 200), 0.01) << seed;
  }
}

}  // namespace
}  // namespace tf_hvd
