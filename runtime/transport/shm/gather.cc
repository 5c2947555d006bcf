#include "runtime/transport/shm/gather.h"

#include <cstdint>

#include "runtime/contract/spans.h"

namespace tf_hvd {
namespace {

class Broadcast final : public ShmPlan {
 public:
  Broadcast(const OperationSpec& spec, size_t me, size_t slot_bytes)
      : spans_(spec.spans, 1),
        root_(spec.root),
        me_(me),
        piece_bytes_(slot_bytes) {}

  uint64_t count() const override {
    return PiecesOf(spans_.count(), piece_bytes_);
  }
  bool Publishes(size_t place) const override { return place == root_; }

  void Publish(uint64_t piece, char* slot, SlotWriter* writer) override {
    writer->Pack(SlotWriter::kAll, spans_, At(piece), Bytes(piece), slot);
  }
  void Consume(uint64_t piece, const ShmSlots& slots, SlotWriter*) override {
    if (me_ == root_) return spans_.Copy(At(piece), Bytes(piece));
    spans_.Unpack(At(piece), Bytes(piece), slots[root_]);
  }

 private:
  int64_t At(uint64_t piece) const {
    return static_cast<int64_t>(piece * piece_bytes_);
  }
  int64_t Bytes(uint64_t piece) const {
    return static_cast<int64_t>(BytesIn(piece, spans_.count(), piece_bytes_));
  }

  const SpanList spans_;
  const size_t root_;
  const size_t me_;
  const size_t piece_bytes_;
};

class Allgather final : public ShmPlan {
 public:
  Allgather(const OperationSpec& spec, size_t me, size_t slot_bytes)
      : runs_(spec.spans, 1, spec.ranks->size()),
        me_(me),
        piece_bytes_(slot_bytes) {}

  uint64_t count() const override {
    return PiecesOf(runs_.Longest(), piece_bytes_);
  }
  bool Publishes(size_t place) const override {
    return runs_.CountOf(place) > 0;
  }

  void Publish(uint64_t piece, char* slot, SlotWriter* writer) override {
    writer->Pack(SlotWriter::kAll, runs_.list(), At(piece, me_),
                 Bytes(piece, me_), slot);
  }
  void Consume(uint64_t piece, const ShmSlots& slots, SlotWriter*) override {
    for (size_t place = 0; place < slots.size(); ++place) {
      const int64_t at = At(piece, place);
      const int64_t bytes = Bytes(piece, place);
      if (place == me_) {
        runs_.list().Copy(at, bytes);
      } else {
        runs_.list().Unpack(at, bytes, slots[place]);
      }
    }
  }

 private:
  int64_t At(uint64_t piece, size_t place) const {
    return runs_.BeginOf(place) + static_cast<int64_t>(piece * piece_bytes_);
  }
  int64_t Bytes(uint64_t piece, size_t place) const {
    return static_cast<int64_t>(
        BytesIn(piece, runs_.CountOf(place), piece_bytes_));
  }

  const RankRuns runs_;
  const size_t me_;
  const size_t piece_bytes_;
};

}  // namespace

std::unique_ptr<ShmPlan> PlanBroadcast(const OperationSpec& spec, size_t me,
                                       size_t slot_bytes) {
  return std::make_unique<Broadcast>(spec, me, slot_bytes);
}

std::unique_ptr<ShmPlan> PlanAllgather(const OperationSpec& spec, size_t me,
                                       size_t slot_bytes) {
  return std::make_unique<Allgather>(spec, me, slot_bytes);
}

}  // namespace tf_hvd
