// The controller against its invariants, on a virtual clock: thousands of
// random jobs, each from one seed.
//
//   protocol_test --seeds=FIRST:COUNT    other seeds than the default ones
//   protocol_test --seed=N               a single seed, from a failure
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "tests/runtime/protocol/simulation.h"

namespace tf_hvd::protocol_test {
namespace {

constexpr int kMaxFailuresShown = 10;

SeedRange seeds_to_run = {0, 5000};

TEST(ProtocolTest, InvariantsHoldForEverySeed) {
  std::map<std::string, int> runs;
  size_t submissions = 0;
  int failures = 0;
  for (uint64_t i = 0; i < seeds_to_run.count; ++i) {
    const uint64_t seed = seeds_to_run.first + i;
    const Outcome outcome = RunSeed(seed, SimOptions());
    ++runs[outcome.scenario];
    submissions += outcome.submissions;
    if (outcome.failure.empty()) continue;
    ADD_FAILURE() << "seed " << seed << " (" << outcome.scenario
                  << "): " << outcome.failure;
    if (++failures == kMaxFailuresShown) break;
  }
  std::printf("%llu seeds from %llu, %zu submissions:",
              static_cast<unsigned long long>(seeds_to_run.count),
              static_cast<unsigned long long>(seeds_to_run.first), submissions);
  for (const auto& [scenario, count] : runs) {
    std::printf(" %s %d;", scenario.c_str(), count);
  }
  std::printf("\n");
}

TEST(ProtocolTest, SameSeedGivesTheSameRun) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const Outcome first = RunSeed(seed, SimOptions());
    const Outcome second = RunSeed(seed, SimOptions());
    EXPECT_EQ(first.scenario, second.scenario);
    EXPECT_EQ(first.submissions, second.submissions);
    EXPECT_EQ(first.events, second.events);
  }
}

// Seeds that have failed once, named by the bug in the runtime.
struct Regression {
  const char* name;
  uint64_t seed;
};

class RegressionTest : public testing::TestWithParam<Regression> {};

TEST_P(RegressionTest, Holds) {
  const Outcome outcome = RunSeed(GetParam().seed, SimOptions());
  EXPECT_EQ(outcome.failure, "") << outcome.scenario;
}

INSTANTIATE_TEST_SUITE_P(
    Found, RegressionTest,
    testing::Values(Regression{"SetNumberUsedTwice", 54},
                    Regression{"RefusedCallStaysOpen", 75},
                    Regression{"JoinCountsForOlderCalls", 97},
                    Regression{"ReportWithoutAWait", 1203},
                    Regression{"RemovedInOtherWords", 13}),
    [](const auto& one) { return std::string(one.param.name); });

TEST(SeedRangeTest, ReadsFirstAndCount) {
  const std::optional<SeedRange> range = ParseSeedRange("7:100");
  ASSERT_TRUE(range.has_value());
  EXPECT_EQ(range->first, 7u);
  EXPECT_EQ(range->count, 100u);
  for (const char* bad : {"", "7", ":3", "7:", "a:b", "7:3x"}) {
    EXPECT_FALSE(ParseSeedRange(bad).has_value()) << bad;
  }
}

bool ReadFlags(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    std::optional<SeedRange> range;
    if (flag.rfind("--seeds=", 0) == 0) range = ParseSeedRange(flag.substr(8));
    if (flag.rfind("--seed=", 0) == 0) {
      range = ParseSeedRange(flag.substr(7) + ":1");
    }
    if (!range.has_value()) {
      std::fprintf(stderr, "unknown flag %s; --seeds=FIRST:COUNT, --seed=N\n",
                   argv[i]);
      return false;
    }
    seeds_to_run = *range;
  }
  return true;
}

}  // namespace
}  // namespace tf_hvd::protocol_test

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (!tf_hvd::protocol_test::ReadFlags(argc, argv)) return 2;
  return RUN_ALL_TESTS();
}
