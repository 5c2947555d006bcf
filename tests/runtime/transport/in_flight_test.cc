// Concurrent operations of all kinds, on overlapping process sets; run for each
// data path (cluster.h). two_level_test.cc does the same on nodes of all
// shapes.
#include <gtest/gtest.h>

#include <vector>

#include "tests/runtime/transport/cluster.h"
#include "tests/runtime/transport/juggler.h"

namespace tf_hvd {
namespace {

class InFlight : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, InFlight,
                         ::testing::Values(1, 2, 3, 4, 8, 16, 64));

TEST_P(InFlight, OperationsOfOverlappingSets) {
  const int ranks = GetParam();
  const auto sets = OverlappingSets(ranks);
  Cluster cluster(ranks);
  RunRanks(ranks, [&](int rank) {
    const auto& backends = cluster.backends[static_cast<size_t>(rank)];
    Juggler juggler(rank, sets, backends, backends.front()->window(),
                    ranks > 8 ? kOperations / 6 : kOperations);
    while (juggler.busy()) juggler.Turn();
  });
}

}  // namespace
}  // namespace tf_hvd
