// One simulated run: a job, a program, a scenario, all from one seed.
#ifndef TF_HVD_TESTS_RUNTIME_PROTOCOL_SIMULATION_H_
#define TF_HVD_TESTS_RUNTIME_PROTOCOL_SIMULATION_H_

#include <cstdint>
#include <optional>
#include <string>

#include "tests/runtime/protocol/sim_world.h"

namespace tf_hvd::protocol_test {

struct Outcome {
  std::string scenario;
  size_t submissions = 0;
  uint64_t events = 0;
  std::string failure;  // empty: every invariant held
};

Outcome RunSeed(uint64_t seed, const SimOptions& options);

struct SeedRange {
  uint64_t first = 0;
  uint64_t count = 0;
};

// "FIRST:COUNT"
std::optional<SeedRange> ParseSeedRange(const std::string& text);

// "seed 17 (join): ..." for the first seed that fails; empty if none does.
std::optional<std::string> FirstFailure(const SeedRange& seeds,
                                        const SimOptions& options);

}  // namespace tf_hvd::protocol_test

#endif  // TF_HVD_TESTS_RUNTIME_PROTOCOL_SIMULATION_H_
