#include "runtime/agreement/tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <vector>

#include "runtime/contract/world.h"

namespace tf_hvd {
namespace {

using Nodes = std::vector<std::vector<int>>;
using Ranks = std::vector<int>;

TEST(Tree, LeadersFormATreeOfTheFanOut) {
  // Ranks assigned round-robin, so that no node has consecutive ones.
  const Nodes nodes = {{0, 4}, {1, 5}, {2}, {3, 6}};
  const TreePlace top = PlaceOf(0, nodes, 2);
  EXPECT_EQ(top.children, (Ranks{4, 1, 2}));
  EXPECT_EQ(top.below, (Nodes{{4}, {1, 3, 5, 6}, {2}}));
  const TreePlace middle = PlaceOf(1, nodes, 2);
  EXPECT_EQ(middle.parent, 0);
  EXPECT_EQ(middle.children, (Ranks{5, 3}));
  EXPECT_EQ(middle.below, (Nodes{{5}, {3, 6}}));
  EXPECT_EQ(PlaceOf(6, nodes, 2).parent, 3);
  EXPECT_EQ(PlaceOf(3, nodes, 2).parent, 1);
}

TEST(Tree, FanOutOfEightByDefault) {
  Nodes nodes;
  for (int node = 0; node < 20; ++node) nodes.push_back({node});
  EXPECT_EQ(PlaceOf(0, nodes).children, (Ranks{1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(PlaceOf(9, nodes).parent, 1);
  EXPECT_EQ(PlaceOf(2, nodes).children, (Ranks{17, 18, 19}));
}

// Parents and children agree, and a controller's rank and its children's
// subtrees make up its parent's subtree.
TEST(Tree, PlacesAreConsistentForRandomNodes) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    const int size = 1 + static_cast<int>(random() % 40);
    const size_t node_count = 1 + random() % 12;
    std::vector<std::vector<int>> dealt(node_count);
    for (int rank = 0; rank < size; ++rank) {
      dealt[random() % node_count].push_back(rank);
    }
    dealt.erase(std::remove(dealt.begin(), dealt.end(), Ranks{}), dealt.end());
    std::sort(dealt.begin(), dealt.end());  // in the order of first ranks
    const int fan_out = 1 + static_cast<int>(random() % 4);
    for (int rank = 0; rank < size; ++rank) {
      const TreePlace place = PlaceOf(rank, dealt, fan_out);
      EXPECT_EQ(place.parent == -1, rank == 0);
      ASSERT_EQ(place.children.size(), place.below.size());
      for (size_t i = 0; i < place.children.size(); ++i) {
        const TreePlace child = PlaceOf(place.children[i], dealt, fan_out);
        EXPECT_EQ(child.parent, rank);
        Ranks expected = {place.children[i]};
        for (const Ranks& below : child.below) {
          expected.insert(expected.end(), below.begin(), below.end());
        }
        std::sort(expected.begin(), expected.end());
        EXPECT_EQ(place.below[i], expected);
      }
      if (rank == 0) {
        size_t below = 0;
        for (const Ranks& ranks : place.below) below += ranks.size();
        EXPECT_EQ(below + 1, static_cast<size_t>(size));
      }
    }
  }
}

Topology TopologyOf(int rank, Nodes nodes) {
  Topology topology;
  topology.rank = rank;
  topology.nodes = std::move(nodes);
  return topology;
}

TEST(Tree, PathToTheCoordinator) {
  // 0..1, 2..3, 4..5; with fan-out 1 node 2 is below node 1.
  const std::vector<std::vector<int>> nodes = {{0, 1}, {2, 3}, {4, 5}};
  struct Row {
    int rank;
    std::vector<int> members;
    std::vector<int> path;
  };
  const Row rows[] = {
      {0, {0, 1, 2, 3, 4, 5}, {}},
      {1, {0, 1, 2, 3, 4, 5}, {0}},
      {5, {0, 5}, {4, 2, 0}},
      {5, {3, 5}, {4, 2}},
      {4, {4, 5}, {}},
      {5, {4, 5}, {4}},
      {3, {3, 5}, {2}},
      {3, {3}, {}},
  };
  for (const Row& row : rows) {
    EXPECT_EQ(PathToCoordinator(row.rank, row.members, nodes, 1), row.path)
        << row.rank;
  }
}

TEST(Topology, RanksAssignedRoundRobin) {
  const Topology topology = TopologyOf(4, {{0, 3}, {1, 4}, {2, 5}});
  EXPECT_EQ(topology.NodeOf(5), 2);
  EXPECT_EQ(topology.NodeOf(6), -1);
  EXPECT_EQ(topology.LocalRank(), 1);
  EXPECT_EQ(topology.LocalSize(), 2);
  EXPECT_EQ(topology.CrossRank(), 1);
  EXPECT_EQ(topology.CrossSize(), 3);
  EXPECT_TRUE(topology.Homogeneous());
}

TEST(Topology, NodesOfDifferentSizes) {
  const Nodes nodes = {{0, 1}, {2}, {3, 4, 5}};
  const Topology second = TopologyOf(4, nodes);
  EXPECT_EQ(second.LocalRank(), 1);
  EXPECT_EQ(second.CrossRank(), 1);  // the node in between has no second rank
  EXPECT_EQ(second.CrossSize(), 2);
  EXPECT_FALSE(second.Homogeneous());
  const Topology third = TopologyOf(5, nodes);
  EXPECT_EQ(third.LocalRank(), 2);
  EXPECT_EQ(third.CrossRank(), 0);
  EXPECT_EQ(third.CrossSize(), 1);
}

}  // namespace
}  // namespace tf_hvd
