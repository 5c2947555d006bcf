// Operations of all kinds that are under way at once, of process sets that
// overlap; run over each way to move data (cluster.h). two_level_test.cc does
// the same on nodes of all shapes.
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
  std::vector<std::vector<int>> sets(ranks > 2 ? 3 : 1);
  for (int rank = 0; rank < ranks; ++rank) {
    sets[0].push_back(rank);
    if (ranks > 2 && rank > 0) sets[1].push_back(rank);
    if (ranks > 2 && rank % 2 == 0) sets[2].push_back(rank);
  }
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
