#include "runtime/transport/shm_across.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/buffer_ops.h"
#include "runtime/transport/byte_pieces.h"
#include "runtime/transport/offsets.h"
#include "runtime/transport/shm_allreduce.h"

namespace tf_hvd {
namespace {

// What one member gives to or gets from one piece, at least: messages that are
// shorter cost as much.
constexpr size_t kLeastPartBytes = size_t{4} << 10;
constexpr size_t kAlign = 64;  // a cache line

// The members of a node that are served by the owner at a place, itself first.
size_t ServedBy(const NodeLayout& layout, size_t members) {
  return (members + layout.owners - 1) / layout.owners;
}

template <typename Visit>  // visit(place on the node)
void ForServed(const NodeLayout& layout, size_t node, size_t owner,
               const Visit& visit) {
  const size_t members = layout.members[node].size();
  for (size_t place = owner; place < members; place += layout.owners) {
    visit(place);
  }
}

// The parts of an allgather that one slot has: what the members that one owner
// serves give on all nodes.
size_t GatherParts(const NodeLayout& layout) {
  size_t parts = 0;
  for (const auto& members : layout.members) {
    parts += ServedBy(layout, members.size());
  }
  return parts;
}

// Those of a reducescatter: one for each member of the set, and the results of
// those that one owner serves on its node.
size_t ScatterParts(const NodeLayout& layout) {
  size_t parts = 0;
  size_t most = 0;
  for (const auto& members : layout.members) {
    parts += members.size();
    most = std::max(most, members.size());
  }
  return parts + ServedBy(layout, most);
}

size_t PartBytes(size_t slot_bytes, size_t parts) {
  return slot_bytes / parts / kAlign * kAlign;
}

// Each owner has a slice of what the root gives, and takes it to or from the
// other nodes.
class BroadcastAcross final : public ShmPieces {
 public:
  BroadcastAcross(const OperationSpec& local, size_t me,
                  const ShmAcross& across)
      : span_(local.spans[0]),
        layout_(*across.layout),
        me_(me),
        piece_bytes_(across.slot_bytes) {
    for (size_t node = 0; node < layout_.members.size(); ++node) {
      const auto& members = layout_.members[node];
      const auto found =
          std::lower_bound(members.begin(), members.end(), across.root);
      if (found == members.end() || *found != across.root) continue;
      root_node_ = node;
      root_ = static_cast<size_t>(found - members.begin());
    }
    at_root_ = root_node_ == layout_.here;
  }

  uint64_t count() const override {
    return PiecesOf(span_.count, piece_bytes_);
  }
  // Elsewhere, the slot is where an owner's slice arrives.
  bool Gives(size_t place) const override {
    return at_root_ ? place == root_ : place < layout_.owners;
  }
  bool has_results() const override { return true; }

  void Give(uint64_t piece, char* slot) override {
    if (at_root_) CopyAt(slot, 0, span_.input, At(piece), Bytes(piece));
  }
  void Take(uint64_t piece, const ShmSlots& slots) override {
    if (!at_root_ || span_.output == nullptr) return;
    const bool mine = me_ == root_;
    CopyAt(span_.output, At(piece), mine ? span_.input : slots[root_],
           mine ? At(piece) : 0, Bytes(piece));
  }
  bool Exchange(uint64_t piece, const ShmSlots& slots,
                OperationSpec* spec) const override {
    if (me_ >= layout_.owners) return false;
    const size_t from = CutOf(piece, me_);
    const size_t bytes = CutOf(piece, me_ + 1) - from;
    char* const data = slots[at_root_ ? root_ : me_] + from;
    spec->root = root_node_;
    spec->of_pieces = count();
    spec->spans = {{data, data, static_cast<int64_t>(bytes)}};
    return bytes > 0;
  }
  void Fetch(uint64_t piece, const ShmSlots& slots) override {
    if (at_root_ || span_.output == nullptr) return;
    for (size_t owner = 0; owner < layout_.owners; ++owner) {
      const size_t from = CutOf(piece, owner);
      CopyAt(span_.output, At(piece) + from, slots[owner], from,
             CutOf(piece, owner + 1) - from);
    }
  }

 private:
  size_t At(uint64_t piece) const { return piece * piece_bytes_; }
  size_t Bytes(uint64_t piece) const {
    return BytesIn(piece, span_.count, piece_bytes_);
  }
  // Where an owner's slice begins.
  size_t CutOf(uint64_t piece, size_t owner) const {
    const size_t bytes = Bytes(piece);
    if (owner == layout_.owners) return bytes;
    return bytes * owner / layout_.owners / kAlign * kAlign;
  }

  const Span span_;
  const NodeLayout& layout_;
  const size_t me_;
  const size_t piece_bytes_;
  size_t root_node_ = 0;
  size_t root_ = 0;  // its place on its node
  bool at_root_ = false;
};

// Piece k has the k-th part of what each rank gives. In an owner's slot lie, in
// the order of the nodes, the parts of those that it serves, and that the
// owners of its place serve on the other nodes. The others' parts begin their
// slots.
class AllgatherAcross final : public ShmPieces {
 public:
  AllgatherAcross(const OperationSpec& local, size_t me,
                  const ShmAcross& across)
      : input_(local.input),
        output_(local.output),
        sizes_(local.receive),
        begins_(OffsetsOf<size_t>(sizes_)),
        layout_(*across.layout),
        me_(me),
        part_bytes_(PartBytes(across.slot_bytes, GatherParts(layout_))) {}

  uint64_t count() const override {
    return PiecesOf(*std::max_element(sizes_.begin(), sizes_.end()),
                    part_bytes_);
  }
  bool Gives(size_t) const override { return true; }
  bool has_results() const override { return true; }

  void Give(uint64_t piece, char* slot) override {
    CopyAt(slot, OwnAt(piece, me_), input_, piece * part_bytes_,
           Bytes(piece, layout_.here, me_));
  }
  void Take(uint64_t piece, const ShmSlots& slots) override {
    for (size_t place = 0; place < slots.size(); ++place) {
      const bool mine = place == me_;
      CopyAt(output_, OutputAt(piece, layout_.here, place),
             mine ? input_ : slots[place],
             mine ? piece * part_bytes_ : OwnAt(piece, place),
             Bytes(piece, layout_.here, place));
    }
    if (me_ >= layout_.owners) return;
    size_t at = OwnAt(piece, me_);
    ForServed(layout_, layout_.here, me_, [&](size_t place) {
      const size_t bytes = Bytes(piece, layout_.here, place);
      if (place != me_) CopyAt(slots[me_], at, slots[place], 0, bytes);
      at += bytes;
    });
  }
  bool Exchange(uint64_t piece, const ShmSlots& slots,
                OperationSpec* spec) const override {
    if (me_ >= layout_.owners) return false;
    int64_t total = 0;
    for (size_t node = 0; node < layout_.members.size(); ++node) {
      spec->receive.push_back(BytesOfNode(piece, node, me_));
      total += spec->receive.back();
    }
    spec->input = slots[me_] + OwnAt(piece, me_);
    spec->output = slots[me_];
    return total > 0;
  }
  void Fetch(uint64_t piece, const ShmSlots& slots) override {
    for (size_t owner = 0; owner < layout_.owners; ++owner) {
      size_t at = 0;
      for (size_t node = 0; node < layout_.members.size(); ++node) {
        ForServed(layout_, node, owner, [&](size_t place) {
          const size_t bytes = Bytes(piece, node, place);
          if (node != layout_.here) {
            CopyAt(output_, OutputAt(piece, node, place), slots[owner], at,
                   bytes);
          }
          at += bytes;
        });
      }
    }
  }

 private:
  size_t Bytes(uint64_t piece, size_t node, size_t place) const {
    return BytesIn(piece, sizes_[layout_.members[node][place]], part_bytes_);
  }
  size_t OutputAt(uint64_t piece, size_t node, size_t place) const {
    return begins_[layout_.members[node][place]] + piece * part_bytes_;
  }
  int64_t BytesOfNode(uint64_t piece, size_t node, size_t owner) const {
    size_t bytes = 0;
    ForServed(layout_, node, owner,
              [&](size_t place) { bytes += Bytes(piece, node, place); });
    return static_cast<int64_t>(bytes);
  }
  // Where a rank of this node has put its own part into its slot.
  size_t OwnAt(uint64_t piece, size_t place) const {
    size_t at = 0;
    if (place >= layout_.owners) return at;
    for (size_t node = 0; node < layout_.here; ++node) {
      at += static_cast<size_t>(BytesOfNode(piece, node, place));
    }
    return at;
  }

  const void* const input_;
  void* const output_;
  const std::vector<int64_t>& sizes_;
  const std::vector<size_t> begins_;
  const NodeLayout& layout_;
  const size_t me_;
  const size_t part_bytes_;
};

// Piece k has the k-th part of what each rank gets. A slot has a section for
// each owner: the parts of all that the owners of its place serve, in the order
// of the nodes. The owner reduces its node's inputs of its section where that
// lies in its own slot; behind all sections comes what those get that it
// serves here.
class ReducescatterAcross final : public ShmPieces {
 public:
  ReducescatterAcross(const OperationSpec& local, size_t me,
                      const ShmAcross& across)
      : options_(local.reduce),
        element_(SizeOf(options_.dtype)),
        input_(static_cast<const char*>(local.input)),
        output_(static_cast<char*>(local.output)),
        counts_(local.send),
        begins_(OffsetsOf<size_t>(counts_)),
        layout_(*across.layout),
        me_(me),
        part_bytes_(PartBytes(across.slot_bytes, ScatterParts(layout_))),
        inputs_(local.ranks->size()) {}

  uint64_t count() const override {
    const int64_t longest = *std::max_element(counts_.begin(), counts_.end());
    return PiecesOf(longest * static_cast<int64_t>(element_), part_bytes_);
  }
  bool Gives(size_t) const override { return true; }
  bool has_results() const override { return true; }

  void Give(uint64_t piece, char* slot) override {
    for (size_t owner = 0; owner < layout_.owners; ++owner) {
      if (owner == me_) continue;
      ForSection(piece, owner, [&](size_t place, size_t at, size_t bytes) {
        CopyAt(slot, at, input_, InputAt(piece, place), bytes);
      });
    }
  }
  void Take(uint64_t piece, const ShmSlots& slots) override {
    if (me_ >= layout_.owners) return;
    ForSection(piece, me_, [&](size_t place, size_t at, size_t bytes) {
      if (bytes == 0) return;
      for (size_t i = 0; i < slots.size(); ++i) inputs_[i] = slots[i] + at;
      inputs_[me_] = input_ + InputAt(piece, place);
      ReduceInputs(options_, inputs_, static_cast<int64_t>(bytes / element_),
                   slots[me_] + at);
    });
  }
  bool Exchange(uint64_t piece, const ShmSlots& slots,
                OperationSpec* spec) const override {
    if (me_ >= layout_.owners) return false;
    int64_t total = 0;
    for (size_t node = 0; node < layout_.members.size(); ++node) {
      size_t bytes = 0;
      ForServed(layout_, node, me_, [&](size_t place) {
        bytes += Bytes(piece, layout_.members[node][place]);
      });
      spec->send.push_back(static_cast<int64_t>(bytes / element_));
      total += spec->send.back();
    }
    spec->input = slots[me_] + SectionAt(me_);
    spec->output = slots[me_] + ResultsAt();
    return total > 0;
  }
  void Fetch(uint64_t piece, const ShmSlots& slots) override {
    const size_t owner = me_ % layout_.owners;
    size_t at = ResultsAt();
    ForServed(layout_, layout_.here, owner, [&](size_t place) {
      const size_t bytes = Bytes(piece, layout_.members[layout_.here][place]);
      if (place == me_) {
        CopyAt(output_, piece * part_bytes_, slots[owner], at, bytes);
      }
      at += bytes;
    });
  }

 private:
  // By places in the set.
  size_t Bytes(uint64_t piece, size_t place) const {
    return BytesIn(piece, counts_[place] * static_cast<int64_t>(element_),
                   part_bytes_);
  }
  size_t InputAt(uint64_t piece, size_t place) const {
    return begins_[place] * element_ + piece * part_bytes_;
  }

  size_t SectionAt(size_t owner) const {
    size_t parts = 0;
    for (const auto& members : layout_.members) {
      for (size_t before = 0; before < owner; ++before) {
        parts +=
            (members.size() - before + layout_.owners - 1) / layout_.owners;
      }
    }
    return parts * part_bytes_;
  }
  size_t ResultsAt() const {
    return begins_.size() * part_bytes_ - part_bytes_;
  }

  template <typename Visit>  // visit(place in the set, offset in slots, bytes)
  void ForSection(uint64_t piece, size_t owner, const Visit& visit) const {
    size_t at = SectionAt(owner);
    for (size_t node = 0; node < layout_.members.size(); ++node) {
      ForServed(layout_, node, owner, [&](size_t local) {
        const size_t place = layout_.members[node][local];
        const size_t bytes = Bytes(piece, place);
        visit(place, at, bytes);
        at += bytes;
      });
    }
  }

  const ReduceOptions options_;
  const size_t element_;
  const char* const input_;
  char* const output_;
  const std::vector<int64_t>& counts_;
  const std::vector<size_t> begins_;
  const NodeLayout& layout_;
  const size_t me_;
  const size_t part_bytes_;
  std::vector<const void*> inputs_;
};

}  // namespace

bool HasRoomAcross(OpKind kind, const NodeLayout& layout, size_t slot_bytes) {
  size_t parts = 1;
  if (kind == OpKind::kAllgather) parts = GatherParts(layout);
  if (kind == OpKind::kReducescatter) parts = ScatterParts(layout);
  return PartBytes(slot_bytes, parts) >= kLeastPartBytes;
}

std::unique_ptr<ShmPieces> CutAcross(const OperationSpec& local, size_t me,
                                     const ShmAcross& across) {
  switch (local.kind) {
    case OpKind::kBroadcast:
      return std::make_unique<BroadcastAcross>(local, me, across);
    case OpKind::kAllgather:
      return std::make_unique<AllgatherAcross>(local, me, across);
    case OpKind::kReducescatter:
      return std::make_unique<ReducescatterAcross>(local, me, across);
    default:
      return SlicedAllreduce(local, me, across.slot_bytes,
                             SliceRule{across.layout->owners, true});
  }
}

}  // namespace tf_hvd
