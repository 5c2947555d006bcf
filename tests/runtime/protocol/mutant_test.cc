// A flaw is built into the controller (mutants.toml) or into its surroundings,
// and the invariants must detect it. This shows that the test can fail.
//
//   --flaw=separate_streams
// stall_closes    a flaw of the surroundings
#include <gtest/gtest.h>

#include <cstdio>
#include <optional>
#include <string>

#include "tests/runtime/protocol/simulation.h"

namespace tf_hvd::protocol_test {
namespace {

constexpr SeedRange kSeeds = {0, 10'000};

SimOptions options;

TEST(MutantTest, FlawIsDetected) {
  const std::optional<std::string> failure = FirstFailure(kSeeds, options);
  ASSERT_TRUE(failure.has_value())
      << "none of " << kSeeds.count << " seeds fails with the flaw";
  std::printf("%s\n", failure->c_str());
}

bool ReadFlags(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--flaw=separate_streams") {
      options.separate_streams = true;
    } else if (flag == "--flaw=stall_closes") {
      options.stall_closes = true;
    } else {
      std::fprintf(stderr, "unknown flag %s\n", argv[i]);
      return false;
    }
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
