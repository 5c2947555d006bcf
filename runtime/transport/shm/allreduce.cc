#include "runtime/transport/shm/allreduce.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "compute/buffer_ops.h"
#include "runtime/contract/spans.h"

namespace tf_hvd {
namespace {

// Up to this length all ranks reduce everything, which saves one wait.
constexpr size_t kSmallBytes = size_t{16} << 10;
// Pieces of long data: enough that one is received while another is reduced,
// and none so short that waiting dominates.
constexpr size_t kLeastPieceBytes = size_t{128} << 10;
constexpr int64_t kPieces = 4;
constexpr auto kAlign = static_cast<int64_t>(kSliceAlign);

class SmallAllreduce final : public ShmPlan {
 public:
  explicit SmallAllreduce(const OperationSpec& spec)
      : options_(AverageAsSum(spec.reduce, spec.ranks->size())),
        spans_(spec.spans, SizeOf(spec.reduce.dtype)),
        inputs_(spec.ranks->size()) {}

  uint64_t count() const override { return spans_.count() > 0 ? 1 : 0; }
  bool Publishes(size_t) const override { return true; }

  void Publish(uint64_t, char* slot, SlotWriter* writer) override {
    writer->Pack(SlotWriter::kAll, spans_, 0, spans_.count(), slot);
  }

  void Consume(uint64_t, const ShmSlots& slots, SlotWriter*) override {
    size_t offset = 0;
    spans_.ForEach(0, spans_.count(),
                   [&](const char*, char* output, int64_t n) {
                     for (size_t i = 0; i < slots.size(); ++i)
                       inputs_[i] = slots[i] + offset;
                     if (output != nullptr)
                       ReduceInputs(options_, inputs_, n, output);
                     offset += static_cast<size_t>(n) * spans_.element_bytes();
                   });
  }

 private:
  const ReduceOptions options_;
  const SpanList spans_;
  std::vector<const void*> inputs_;
};

class LargeAllreduce final : public ShmPlan {
 public:
  LargeAllreduce(const OperationSpec& spec, size_t me, size_t slot_bytes,
                 const SliceRule& rule)
      : options_(AverageAsSum(spec.reduce, spec.ranks->size())),
        spans_(spec.spans, SizeOf(spec.reduce.dtype)),
        rule_(rule),
        me_(me),
        inputs_(spec.ranks->size()) {
    const auto element = static_cast<int64_t>(spans_.element_bytes());
    const int64_t most = static_cast<int64_t>(slot_bytes) / element;
    const int64_t least = static_cast<int64_t>(kLeastPieceBytes) / element;
    const int64_t wanted = (spans_.count() + kPieces - 1) / kPieces;
    piece_count_ = std::clamp((wanted + kAlign - 1) / kAlign * kAlign,
                              std::min(least, most), most);
  }

  uint64_t count() const override {
    return static_cast<uint64_t>((spans_.count() + piece_count_ - 1) /
                                 piece_count_);
  }
  bool Publishes(size_t) const override { return true; }
  bool has_results() const override { return true; }

  // All except this rank's own slice.
  void Publish(uint64_t piece, char* slot, SlotWriter* writer) override {
    for (size_t place = 0; place < rule_.owners; ++place) {
      if (place == me_) continue;
      const Range slice = SliceOf(piece, place);
      writer->Pack(place, spans_, slice.begin, slice.count(),
                   slot + OffsetOf(piece, slice));
    }
  }

  // Data for other nodes is read here next, and rewritten by the rank that
  // receives the result.
  void Consume(uint64_t piece, const ShmSlots& slots,
               SlotWriter* writer) override {
    const Range slice = SliceOf(piece, me_);
    size_t offset = OffsetOf(piece, slice);
    const Stores stores =
        rule_.crosses
            ? Stores::kOrdinary
            : writer->StoresOfResults(static_cast<size_t>(slice.count()) *
                                      spans_.element_bytes());
    const auto reduce = [&](const char* input, char* output, int64_t n) {
      for (size_t i = 0; i < slots.size(); ++i) inputs_[i] = slots[i] + offset;
      inputs_[me_] = input;
      char* const result = slots[me_] + offset;
      writer->Reduce(options_, inputs_, n, result,
                     rule_.crosses ? nullptr : output, stores);
      offset += static_cast<size_t>(n) * spans_.element_bytes();
    };
    spans_.ForEach(slice.begin, slice.count(), reduce);
  }

  void Gather(uint64_t piece, const ShmSlots& slots) override {
    for (size_t place = 0; place < rule_.owners; ++place) {
      if (place == me_ && !rule_.crosses) continue;
      const Range slice = SliceOf(piece, place);
      spans_.Unpack(slice.begin, slice.count(),
                    slots[place] + OffsetOf(piece, slice));
    }
  }

  bool Exchange(uint64_t piece, const ShmSlots& slots,
                OperationSpec* spec) const override {
    const Range slice = SliceOf(piece, me_);
    char* const data = slots[me_] + OffsetOf(piece, slice);
    spec->spans = {{data, data, slice.count()}};
    return slice.count() > 0;
  }

 private:
  // Empty for a rank that owns no slice.
  Range SliceOf(uint64_t piece, size_t place) const {
    const int64_t begin = static_cast<int64_t>(piece) * piece_count_;
    const int64_t count = std::min(piece_count_, spans_.count() - begin);
    return {begin + CutOf(count, place), begin + CutOf(count, place + 1)};
  }
  int64_t CutOf(int64_t count, size_t place) const {
    return static_cast<int64_t>(
        CutAt(static_cast<size_t>(count), place, rule_.owners));
  }
  size_t OffsetOf(uint64_t piece, const Range& slice) const {
    return static_cast<size_t>(slice.begin -
                               static_cast<int64_t>(piece) * piece_count_) *
           spans_.element_bytes();
  }

  const ReduceOptions options_;
  const SpanList spans_;
  const SliceRule rule_;
  const size_t me_;
  int64_t piece_count_ = 0;  // elements of a piece; the last may have fewer
  std::vector<const void*> inputs_;
};

}  // namespace

std::unique_ptr<ShmPlan> PlanAllreduce(const OperationSpec& spec, size_t me,
                                       size_t slot_bytes) {
  int64_t elements = 0;
  for (const Span& span : spec.spans) elements += span.count;
  const size_t bytes =
      static_cast<size_t>(elements) * SizeOf(spec.reduce.dtype);
  if (bytes <= kSmallBytes) return std::make_unique<SmallAllreduce>(spec);
  return PlanSlicedAllreduce(spec, me, slot_bytes, {spec.ranks->size(), false});
}

std::unique_ptr<ShmPlan> PlanSlicedAllreduce(const OperationSpec& spec,
                                             size_t me, size_t slot_bytes,
                                             const SliceRule& rule) {
  return std::make_unique<LargeAllreduce>(spec, me, slot_bytes, rule);
}

}  // namespace tf_hvd
