#include "runtime/transport/shm_gather.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "runtime/transport/byte_pieces.h"
#include "runtime/transport/offsets.h"

namespace tf_hvd {
namespace {

class Broadcast final : public ShmPieces {
 public:
  Broadcast(const OperationSpec& spec, size_t me, size_t slot_bytes)
      : span_(spec.spans[0]),
        root_(spec.root),
        me_(me),
        piece_bytes_(slot_bytes) {}

  uint64_t count() const override {
    return PiecesOf(span_.count, piece_bytes_);
  }
  bool Gives(size_t place) const override { return place == root_; }

  void Give(uint64_t piece, char* slot) override {
    CopyAt(slot, 0, span_.input, piece * piece_bytes_, Bytes(piece));
  }
  void Take(uint64_t piece, const ShmSlots& slots) override {
    if (span_.output == nullptr) return;
    const size_t at = piece * piece_bytes_;
    const void* const from = me_ == root_ ? span_.input : slots[root_];
    CopyAt(span_.output, at, from, me_ == root_ ? at : 0, Bytes(piece));
  }

 private:
  size_t Bytes(uint64_t piece) const {
    return BytesIn(piece, span_.count, piece_bytes_);
  }

  const Span span_;
  const size_t root_;
  const size_t me_;
  const size_t piece_bytes_;
};

class Allgather final : public ShmPieces {
 public:
  Allgather(const OperationSpec& spec, size_t me, size_t slot_bytes)
      : input_(spec.input),
        output_(spec.output),
        sizes_(spec.receive),
        begins_(OffsetsOf<size_t>(sizes_)),
        me_(me),
        piece_bytes_(slot_bytes) {}

  uint64_t count() const override {
    return PiecesOf(*std::max_element(sizes_.begin(), sizes_.end()),
                    piece_bytes_);
  }
  bool Gives(size_t place) const override { return sizes_[place] > 0; }

  void Give(uint64_t piece, char* slot) override {
    CopyAt(slot, 0, input_, piece * piece_bytes_, Bytes(piece, me_));
  }
  void Take(uint64_t piece, const ShmSlots& slots) override {
    for (size_t place = 0; place < sizes_.size(); ++place) {
      const size_t at = piece * piece_bytes_;
      CopyAt(output_, begins_[place] + at, place == me_ ? input_ : slots[place],
             place == me_ ? at : 0, Bytes(piece, place));
    }
  }

 private:
  size_t Bytes(uint64_t piece, size_t place) const {
    return BytesIn(piece, sizes_[place], piece_bytes_);
  }

  const void* const input_;
  void* const output_;
  const std::vector<int64_t>& sizes_;
  const std::vector<size_t> begins_;
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
  bool Gives(size_t) const override { return true; }

  void Give(uint64_t piece, char* slot) override {
    std::memcpy(slot, &needed_, sizeof(needed_));
    for (size_t place = 0; place < spec_.send.size(); ++place) {
      if (place == me_) continue;
      CopyAt(slot, PartFor(place), spec_.input,
             send_begins_[place] + piece * piece_bytes_,
             BytesIn(piece, spec_.send[place], piece_bytes_));
    }
  }
  void Take(uint64_t piece, const ShmSlots& slots) override {
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
