// The layout of a process set on the nodes, and each member's part of a piece.
//
// Pure except for the memory that NodeParts refers to.
#ifndef TF_HVD_RUNTIME_CONTRACT_NODE_PARTS_H_
#define TF_HVD_RUNTIME_CONTRACT_NODE_PARTS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/contract/operation.h"
#include "runtime/contract/spans.h"

namespace tf_hvd {

// The layout of a process set on the nodes.
struct NodeLayout {
  // For each node with members: their places in the set.
  std::vector<std::vector<size_t>> members;
  size_t here = 0;  // this node's index among these
  // The first members of each node; each node has at least this many.
  size_t owners = 0;
};

inline size_t MembersOf(const NodeLayout& layout) {
  size_t members = 0;
  for (const auto& of_node : layout.members) members += of_node.size();
  return members;
}

// Number of members of a node that the owner at a place serves, including
// itself.
inline size_t ServedBy(const NodeLayout& layout, size_t members,
                       size_t owner = 0) {
  return (members - owner + layout.owners - 1) / layout.owners;
}

// For one piece: the part, of limited size, of each member's share of the data
// (its input or its result). Indexed by place in the set.
class NodeParts {
 public:
  NodeParts(const NodeLayout& layout, const std::vector<Span>& spans,
            size_t element, size_t most_bytes)
      : layout_(layout),
        runs_(spans, element, MembersOf(layout)),
        most_bytes_(most_bytes) {}

  const SpanList& data() const { return runs_.list(); }
  uint64_t pieces() const {
    return PiecesOf(ToBytes(runs_.Longest()), most_bytes_);
  }
  size_t most_bytes() const { return most_bytes_; }
  size_t BytesOf(uint64_t piece, size_t place) const {
    return BytesIn(piece, ToBytes(runs_.CountOf(place)), most_bytes_);
  }
  // Start of the part in `data`, in elements.
  int64_t At(uint64_t piece, size_t place) const {
    return runs_.BeginOf(place) + ToCount(piece * most_bytes_);
  }
  int64_t ToCount(size_t bytes) const {
    return static_cast<int64_t>(bytes / runs_.list().element_bytes());
  }

  // Visits the parts that one owner serves on a node; they are contiguous.
  template <typename Visit>  // visit(place in the set, offset, bytes)
  size_t ForServed(uint64_t piece, size_t node, size_t owner, size_t at,
                   const Visit& visit) const {
    const std::vector<size_t>& members = layout_.members[node];
    for (size_t i = owner; i < members.size(); i += layout_.owners) {
      const size_t bytes = BytesOf(piece, members[i]);
      visit(members[i], at, bytes);
      at += bytes;
    }
    return at;
  }
  // The same on all nodes, in the order of the nodes, for the owner at that
  // place.
  template <typename Visit>
  void ForServedOnAll(uint64_t piece, size_t owner, size_t at,
                      const Visit& visit) const {
    for (size_t node = 0; node < layout_.members.size(); ++node) {
      at = ForServed(piece, node, owner, at, visit);
    }
  }
  size_t BytesServed(uint64_t piece, size_t node, size_t owner) const {
    return ForServed(piece, node, owner, 0, [](size_t, size_t, size_t) {});
  }

 private:
  int64_t ToBytes(int64_t count) const {
    return count * static_cast<int64_t>(runs_.list().element_bytes());
  }

  const NodeLayout& layout_;
  const RankRuns runs_;
  const size_t most_bytes_;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_CONTRACT_NODE_PARTS_H_
