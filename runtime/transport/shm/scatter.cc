#include "runtime/transport/shm/scatter.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "compute/buffer_ops.h"
#include "runtime/contract/spans.h"

namespace tf_hvd {
namespace {

class Alltoall final : public ShmPlan {
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

  void Publish(uint64_t piece, char* slot, SlotWriter* writer) override {
    std::memcpy(slot, &needed_, sizeof(needed_));
    for (size_t place = 0; place < spec_.send.size(); ++place) {
      if (place == me_) continue;
      const size_t bytes = BytesIn(piece, spec_.send[place], piece_bytes_);
      if (bytes == 0) continue;
      writer->Copy(place, slot + PartFor(place),
                   static_cast<const char*>(spec_.input) + send_begins_[place] +
                       piece * piece_bytes_,
                   bytes);
    }
  }
  void Consume(uint64_t piece, const ShmSlots& slots, SlotWriter*) override {
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

class Reducescatter final : public ShmPlan {
 public:
  Reducescatter(const OperationSpec& spec, size_t me, size_t slot_bytes)
      : options_(AverageAsSum(spec.reduce, spec.ranks->size())),
        runs_(spec.spans, SizeOf(spec.reduce.dtype), spec.ranks->size()),
        me_(me),
        inputs_(spec.ranks->size()) {
    part_bytes_ = slot_bytes / inputs_.size() / kSliceAlign * kSliceAlign;
    part_ = static_cast<int64_t>(part_bytes_ / runs_.list().element_bytes());
    count_ = static_cast<uint64_t>((runs_.Longest() + part_ - 1) / part_);
  }

  uint64_t count() const override { return count_; }
  bool Publishes(size_t) const override { return true; }

  void Publish(uint64_t piece, char* slot, SlotWriter* writer) override {
    for (size_t place = 0; place < inputs_.size(); ++place) {
      if (place == me_) continue;
      const Range part = PartOf(piece, place);
      writer->Pack(place, runs_.list(), part.begin, part.count(),
                   slot + place * part_bytes_);
    }
  }

  void Consume(uint64_t piece, const ShmSlots& slots, SlotWriter*) override {
    const Range part = PartOf(piece, me_);
    size_t offset = me_ * part_bytes_;
    const auto reduce = [&](const char* input, char* output, int64_t n) {
      for (size_t i = 0; i < slots.size(); ++i) inputs_[i] = slots[i] + offset;
      inputs_[me_] = input;
      ReduceInputs(options_, inputs_, n, output);
      offset += static_cast<size_t>(n) * runs_.list().element_bytes();
    };
    runs_.list().ForEach(part.begin, part.count(), reduce);
  }

 private:
  // The range of that rank's part, in the whole of the reduced data.
  Range PartOf(uint64_t piece, size_t place) const {
    const int64_t before = static_cast<int64_t>(piece) * part_;
    const int64_t begin = runs_.BeginOf(place) + before;
    return {begin, begin + std::clamp<int64_t>(runs_.CountOf(place) - before, 0,
                                               part_)};
  }

  const ReduceOptions options_;
  const RankRuns runs_;
  const size_t me_;
  std::vector<const void*> inputs_;
  size_t part_bytes_ = 0;
  int64_t part_ = 0;
  uint64_t count_ = 0;
};

}  // namespace

std::unique_ptr<ShmPlan> PlanAlltoall(const OperationSpec& spec, size_t me,
                                      size_t slot_bytes) {
  return std::make_unique<Alltoall>(spec, me, slot_bytes);
}

std::unique_ptr<ShmPlan> PlanReducescatter(const OperationSpec& spec, size_t me,
                                           size_t slot_bytes) {
  return std::make_unique<Reducescatter>(spec, me, slot_bytes);
}

}  // namespace tf_hvd
