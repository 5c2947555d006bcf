#include "runtime/transport/shm/gather.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "runtime/transport/spans.h"

namespace tf_hvd {
namespace {

class Broadcast final : public ShmPieces {
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

  void Publish(uint64_t piece, char* slot) override {
    spans_.Pack(At(piece), Bytes(piece), slot);
  }
  void Consume(uint64_t piece, const ShmSlots& slots) override {
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

class Allgather final : public ShmPieces {
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

  void Publish(uint64_t piece, char* slot) override {
    runs_.list().Pack(At(piece, me_), Bytes(piece, me_), slot);
  }
  void Consume(uint64_t piece, const ShmSlots& slots) override {
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

class Alltoall final : public ShmPieces {
 public:
  Alltoall(const OperationSpec& spec, size_t me, size_t slot_bytes)
      : spec_(spec),
        send_begins_(OffsetsOf<size_t>(spec.send)),
        receive_begins_(OffsetsOf<size_t>(spec.receive)),
        me_(me),
        piece_bytes_((slot_bytes - kHeader) / spec.send.size() / kHeader *
                     kHeader),
        needed_(PiecesOf(*std::max_element(spec.send.begin(), spec.send.end()),
                         piece_bytes_)) {}

  uint64_t count() const override { return count_; }
  bool counted() const override { return counted_; }
  bool Publishes(size_t) const override { return true; }

  void Publish(uint64_t piece, char* slot) override {
    std::memcpy(slot, &needed_, sizeof(needed_));
    for (size_t place = 0; place < spec_.send.size(); ++place) {
      if (place == me_) continue;
      CopyAt(slot, PartFor(place), spec_.input,
             send_begins_[place] + piece * piece_bytes_,
             BytesIn(piece, spec_.send[place], piece_bytes_));
    }
  }
  void Consume(uint64_t piece, const ShmSlots& slots) override {
    counted_ = true;
    for (size_t place = 0; place < slots.size(); ++place) {
      if (piece == 0) {
        uint64_t needed = 0;
        std::memcpy(&needed, slots[place], sizeof(needed));
        count_ = std::max(count_, needed);
      }
      const size_t at = piece * piece_bytes_;
      const bool mine = place == me_;
      CopyAt(spec_.output, receive_begins_[place] + at,
             mine ? spec_.input : slots[place],
             mine ? send_begins_[place] + at : PartFor(me_),
             BytesIn(piece, spec_.receive[place], piece_bytes_));
    }
  }

 private:
  static constexpr size_t kHeader = 64;

  size_t PartFor(size_t place) const { return kHeader + place * piece_bytes_; }

  const OperationSpec& spec_;
  const std::vector<size_t> send_begins_;
  const std::vector<size_t> receive_begins_;
  const size_t me_;
  const size_t piece_bytes_;
  const uint64_t needed_;
  bool counted_ = false;
  uint64_t count_ = 1;
};

}  // namespace

std::unique_ptr<ShmPieces> BroadcastPieces(const OperationSpec& spec, size_t me,
                                           size_t slot_bytes) {
  return std::make_unique<Broadcast>(spec, me, slot_bytes);
}

std::unique_ptr<ShmPieces> AllgatherPieces(const OperationSpec& spec, size_t me,
                                           size_t slot_bytes) {
  return std::make_unique<Allgather>(spec, me, slot_bytes);
}

std::unique_ptr<ShmPieces> AlltoallPieces(const OperationSpec& spec, size_t me,
                                          size_t slot_bytes) {
  return std::make_unique<Alltoall>(spec, me, slot_bytes);
}

}  // namespace tf_hvd
