#include "runtime/transport/shm/across.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "compute/buffer_ops.h"
#include "runtime/contract/spans.h"
#include "runtime/transport/shm/allreduce.h"

namespace tf_hvd {
namespace {

// Minimum size of one member's part of a piece: shorter messages cost as much.
constexpr size_t kLeastPartBytes = size_t{4} << 10;

// Number of parts in one slot of an allgather: the data of the members that one
// owner serves, on all nodes.
size_t GatherParts(const NodeLayout& layout) {
  size_t parts = 0;
  for (const auto& members : layout.members) {
    parts += ServedBy(layout, members.size());
  }
  return parts;
}

// The same for a reducescatter: one part for each member of the set, and the
// results for those that one owner serves on its node.
size_t ScatterParts(const NodeLayout& layout) {
  size_t most = 0;
  for (const auto& members : layout.members) {
    most = std::max(most, members.size());
  }
  return MembersOf(layout) + ServedBy(layout, most);
}

size_t PartBytes(size_t slot_bytes, size_t parts) {
  return slot_bytes / std::max<size_t>(parts, 1) / kSliceAlign * kSliceAlign;
}

// Each owner has a slice of the root's data, and sends it to, or receives it
// from, the other nodes.
class BroadcastAcross final : public ShmPlan {
 public:
  BroadcastAcross(const OperationSpec& local, size_t me,
                  const ShmAcross& across)
      : spans_(local.spans, 1),
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
    return PiecesOf(spans_.count(), piece_bytes_);
  }
  // On other nodes the slot receives an owner's slice.
  bool Publishes(size_t place) const override {
    return at_root_ ? place == root_ : place < layout_.owners;
  }
  bool has_results() const override { return true; }

  void Publish(uint64_t piece, char* slot, SlotWriter* writer) override {
    if (!at_root_) return;
    writer->Pack(SlotWriter::kAll, spans_, At(piece), Bytes(piece), slot);
  }
  void Consume(uint64_t piece, const ShmSlots& slots, SlotWriter*) override {
    if (!at_root_) return;
    if (me_ == root_) return spans_.Copy(At(piece), Bytes(piece));
    spans_.Unpack(At(piece), Bytes(piece), slots[root_]);
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
  void Gather(uint64_t piece, const ShmSlots& slots) override {
    if (at_root_) return;
    for (size_t owner = 0; owner < layout_.owners; ++owner) {
      const size_t from = CutOf(piece, owner);
      spans_.Unpack(At(piece) + static_cast<int64_t>(from),
                    static_cast<int64_t>(CutOf(piece, owner + 1) - from),
                    slots[owner] + from);
    }
  }

 private:
  int64_t At(uint64_t piece) const {
    return static_cast<int64_t>(piece * piece_bytes_);
  }
  int64_t Bytes(uint64_t piece) const {
    return static_cast<int64_t>(BytesIn(piece, spans_.count(), piece_bytes_));
  }
  // Start of an owner's slice.
  size_t CutOf(uint64_t piece, size_t owner) const {
    return CutAt(static_cast<size_t>(Bytes(piece)), owner, layout_.owners);
  }

  const SpanList spans_;
  const NodeLayout& layout_;
  const size_t me_;
  const size_t piece_bytes_;
  size_t root_node_ = 0;
  size_t root_ = 0;  // its place on its node
  bool at_root_ = false;
};

// Piece k has the k-th part of each rank's data. An owner's slot contains, in
// the order of the nodes, the parts of the ranks that it serves, and those that
// the owners of its place serve on the other nodes. Other ranks' slots start
// with their parts.
class AllgatherAcross final : public ShmPlan {
 public:
  AllgatherAcross(const OperationSpec& local, size_t me,
                  const ShmAcross& across)
      : layout_(*across.layout),
        me_(me),
        parts_(layout_, local.spans, 1,
               PartBytes(across.slot_bytes, GatherParts(layout_))) {}

  uint64_t count() const override { return parts_.pieces(); }
  bool Publishes(size_t) const override { return true; }
  bool has_results() const override { return true; }

  void Publish(uint64_t piece, char* slot, SlotWriter* writer) override {
    writer->Pack(SlotWriter::kAll, parts_.data(), parts_.At(piece, Here(me_)),
                 parts_.ToCount(Bytes(piece, me_)), slot + OwnAt(piece, me_));
  }
  void Consume(uint64_t piece, const ShmSlots& slots, SlotWriter*) override {
    for (size_t place = 0; place < slots.size(); ++place) {
      const int64_t at = parts_.At(piece, Here(place));
      const int64_t count = parts_.ToCount(Bytes(piece, place));
      if (place == me_) {
        parts_.data().Copy(at, count);
      } else {
        parts_.data().Unpack(at, count, slots[place] + OwnAt(piece, place));
      }
    }
    if (me_ >= layout_.owners) return;
    size_t at = OwnAt(piece, me_);
    for (size_t place = me_; place < slots.size(); place += layout_.owners) {
      const size_t bytes = Bytes(piece, place);
      if (place != me_) CopyAt(slots[me_], at, slots[place], 0, bytes);
      at += bytes;
    }
  }
  bool Exchange(uint64_t piece, const ShmSlots& slots,
                OperationSpec* spec) const override {
    if (me_ >= layout_.owners) return false;
    size_t at = 0;
    for (size_t node = 0; node < layout_.members.size(); ++node) {
      const size_t bytes = parts_.BytesServed(piece, node, me_);
      char* const data = slots[me_] + at;
      spec->spans.push_back({data, data, static_cast<int64_t>(bytes)});
      at += bytes;
    }
    return at > 0;
  }
  void Gather(uint64_t piece, const ShmSlots& slots) override {
    for (size_t owner = 0; owner < layout_.owners; ++owner) {
      size_t at = 0;
      for (size_t node = 0; node < layout_.members.size(); ++node) {
        const bool here = node == layout_.here;
        at = parts_.ForServed(piece, node, owner, at,
                              [&](size_t place, size_t in_slot, size_t bytes) {
                                if (here) return;
                                parts_.data().Unpack(parts_.At(piece, place),
                                                     parts_.ToCount(bytes),
                                                     slots[owner] + in_slot);
                              });
      }
    }
  }

 private:
  // The place in the set of a rank on this node.
  size_t Here(size_t place) const {
    return layout_.members[layout_.here][place];
  }
  size_t Bytes(uint64_t piece, size_t place) const {
    return parts_.BytesOf(piece, Here(place));
  }
  // Position of a rank's own part in its slot, for a rank on this node.
  size_t OwnAt(uint64_t piece, size_t place) const {
    size_t at = 0;
    if (place >= layout_.owners) return at;
    for (size_t node = 0; node < layout_.here; ++node) {
      at += parts_.BytesServed(piece, node, place);
    }
    return at;
  }

  const NodeLayout& layout_;
  const size_t me_;
  const NodeParts parts_;
};

// Piece k has the k-th part of each rank's result. A slot has a section for
// each owner: the parts of all ranks that the owners of its place serve, in the
// order of the nodes. The owner reduces its node's inputs of its section in its
// own slot. After all sections come the results for the ranks that it serves
// here.
class ReducescatterAcross final : public ShmPlan {
 public:
  ReducescatterAcross(const OperationSpec& local, size_t me,
                      const ShmAcross& across)
      : options_(local.reduce),
        layout_(*across.layout),
        me_(me),
        parts_(layout_, local.spans, SizeOf(options_.dtype),
               PartBytes(across.slot_bytes, ScatterParts(layout_))),
        inputs_(local.ranks->size()) {}

  uint64_t count() const override { return parts_.pieces(); }
  bool Publishes(size_t) const override { return true; }
  bool has_results() const override { return true; }

  void Publish(uint64_t piece, char* slot, SlotWriter* writer) override {
    for (size_t owner = 0; owner < layout_.owners; ++owner) {
      if (owner == me_) continue;
      parts_.ForServedOnAll(piece, owner, SectionAt(owner),
                            [&](size_t place, size_t at, size_t bytes) {
                              writer->Pack(owner, parts_.data(),
                                           parts_.At(piece, place),
                                           parts_.ToCount(bytes), slot + at);
                            });
    }
  }
  void Consume(uint64_t piece, const ShmSlots& slots, SlotWriter*) override {
    if (me_ >= layout_.owners) return;
    parts_.ForServedOnAll(
        piece, me_, SectionAt(me_), [&](size_t place, size_t at, size_t bytes) {
          const auto reduce = [&](const char* input, char*, int64_t n) {
            for (size_t i = 0; i < slots.size(); ++i) {
              inputs_[i] = slots[i] + at;
            }
            inputs_[me_] = input;
            ReduceInputs(options_, inputs_, n, slots[me_] + at);
            at += static_cast<size_t>(n) * parts_.data().element_bytes();
          };
          parts_.data().ForEach(parts_.At(piece, place), parts_.ToCount(bytes),
                                reduce);
        });
  }
  bool Exchange(uint64_t piece, const ShmSlots& slots,
                OperationSpec* spec) const override {
    if (me_ >= layout_.owners) return false;
    size_t at = 0;
    char* const result = slots[me_] + SectionAt(layout_.owners);
    for (size_t node = 0; node < layout_.members.size(); ++node) {
      const size_t bytes = parts_.BytesServed(piece, node, me_);
      spec->spans.push_back(
          {slots[me_] + SectionAt(me_) + at, result, parts_.ToCount(bytes)});
      at += bytes;
    }
    return at > 0;
  }
  void Gather(uint64_t piece, const ShmSlots& slots) override {
    const size_t owner = me_ % layout_.owners;
    const size_t mine = layout_.members[layout_.here][me_];
    parts_.ForServed(piece, layout_.here, owner, SectionAt(layout_.owners),
                     [&](size_t place, size_t at, size_t bytes) {
                       if (place != mine) return;
                       parts_.data().Unpack(parts_.At(piece, place),
                                            parts_.ToCount(bytes),
                                            slots[owner] + at);
                     });
  }

 private:
  // The section of the results follows that of the last owner.
  size_t SectionAt(size_t owner) const {
    size_t parts = 0;
    for (const auto& members : layout_.members) {
      for (size_t before = 0; before < owner; ++before) {
        parts += ServedBy(layout_, members.size(), before);
      }
    }
    return parts * parts_.most_bytes();
  }

  const ReduceOptions options_;
  const NodeLayout& layout_;
  const size_t me_;
  const NodeParts parts_;
  std::vector<const void*> inputs_;
};

}  // namespace

bool HasRoomAcross(OpKind kind, const NodeLayout& layout, size_t slot_bytes) {
  size_t parts = 1;
  if (kind == OpKind::kAllgather) parts = GatherParts(layout);
  if (kind == OpKind::kReducescatter) parts = ScatterParts(layout);
  return PartBytes(slot_bytes, parts) >= kLeastPartBytes;
}

std::unique_ptr<ShmPlan> PlanAcross(const OperationSpec& local, size_t me,
                                    const ShmAcross& across) {
  switch (local.kind) {
    case OpKind::kBroadcast:
      return std::make_unique<BroadcastAcross>(local, me, across);
    case OpKind::kAllgather:
      return std::make_unique<AllgatherAcross>(local, me, across);
    case OpKind::kReducescatter:
      return std::make_unique<ReducescatterAcross>(local, me, across);
    default:
      return PlanSlicedAllreduce(local, me, across.slot_bytes,
                                 SliceRule{across.layout->owners, true});
  }
}

}  // namespace tf_hvd
