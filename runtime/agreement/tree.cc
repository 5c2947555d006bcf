#include "runtime/agreement/tree.h"

#include <algorithm>

namespace tf_hvd {
namespace {

using Nodes = std::vector<std::vector<int>>;

size_t NodeIndexOf(int rank, const Nodes& nodes) {
  const auto found =
      std::find_if(nodes.begin(), nodes.end(), [rank](const auto& node) {
        return std::binary_search(node.begin(), node.end(), rank);
      });
  return static_cast<size_t>(found - nodes.begin());
}

// All ranks of the nodes in the subtree below the node `top`, ascending.
std::vector<int> RanksUnder(size_t top, const Nodes& nodes, size_t fan_out) {
  std::vector<int> ranks;
  std::vector<size_t> todo = {top};
  while (!todo.empty()) {
    const size_t node = todo.back();
    todo.pop_back();
    ranks.insert(ranks.end(), nodes[node].begin(), nodes[node].end());
    for (size_t i = node * fan_out + 1;
         i <= node * fan_out + fan_out && i < nodes.size(); ++i) {
      todo.push_back(i);
    }
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

bool Coordinates(int rank, const TreePlace& place,
                 const std::vector<int>& members) {
  return std::all_of(members.begin(), members.end(), [&](int member) {
    return member == rank ||
           std::any_of(place.below.begin(), place.below.end(),
                       [member](const std::vector<int>& below) {
                         return std::binary_search(below.begin(), below.end(),
                                                   member);
                       });
  });
}

}  // namespace

TreePlace PlaceOf(int rank, const Nodes& nodes, int fan_out) {
  TreePlace place;
  const size_t mine = NodeIndexOf(rank, nodes);
  if (mine == nodes.size()) return place;
  const int leader = nodes[mine].front();
  if (rank != leader) {
    place.parent = leader;
    return place;
  }
  const auto arity = static_cast<size_t>(fan_out);
  if (mine > 0) place.parent = nodes[(mine - 1) / arity].front();
  for (size_t i = 1; i < nodes[mine].size(); ++i) {
    place.children.push_back(nodes[mine][i]);
    place.below.push_back({nodes[mine][i]});
  }
  for (size_t i = mine * arity + 1;
       i <= mine * arity + arity && i < nodes.size(); ++i) {
    place.children.push_back(nodes[i].front());
    place.below.push_back(RanksUnder(i, nodes, arity));
  }
  return place;
}

std::vector<int> PathToCoordinator(int rank, const std::vector<int>& members,
                                   const Nodes& nodes, int fan_out) {
  std::vector<int> path;
  for (;;) {
    const TreePlace place = PlaceOf(rank, nodes, fan_out);
    if (place.parent < 0 || Coordinates(rank, place, members)) return path;
    rank = place.parent;
    path.push_back(rank);
  }
}

}  // namespace tf_hvd
