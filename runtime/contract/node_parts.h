// A process set as it lies on the nodes, and what its members have of a piece.
//
// Pure but for the memory that NodeParts refers to.
#ifndef TF_HVD_RUNTIME_CONTRACT_NODE_PARTS_H_
#define TF_HVD_RUNTIME_CONTRACT_NODE_PARTS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/contract/operation.h"
#include "runtime/contract/spans.h"

namespace tf_hvd {

// A process set as it lies on the nodes.
struct NodeLayout {
  // The places in the set of the members on each node that has some.
  std::vector<std::vector<size_t>> members;
  size_t here = 0;    // this node, among those
  size_t owners = 0;  // of each node, the first: so many members have all
};

inline size_t MembersOf(const NodeLayout& layout) {
  size_t members = 0;
  for (const auto& of_node : layout.members) members += of_node.size();
  return members;
}

// The members of a node that are served by the owner at a place, itself first.
inline size_t ServedBy(const NodeLayout& layout, size_t members,
                       size_t owner = 0) {
  return (members - owner + layout.owners - 1) / layout.owners;
}

// What one piece has of each member's share of the data (what it gives, or
// gets): a part of at most so many bytes. By places in the set.
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
  // Where the part begins in `data`, in elements.
  int64_t At(uint64_t piece, size_t place) const {
    return runs_.BeginOf(place) + ToCount(piece * most_bytes_);
  }
  int64_t ToCount(size_t bytes) const {
    return static_cast<int64_t>(bytes / runs_.list().element_bytes());
  }

  // Those that one owner serves on a node lie one behind the other.
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
  // And those of its place on all nodes, in the order of the nodes.
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
