#include "runtime/transport/gpu/plan.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "runtime/contract/spans.h"
#include "runtime/transport/gpu/sum_plan.h"

namespace tf_hvd {
namespace {

// Pieces start at multiples of this, which aligns any element.
constexpr size_t kPieceAlign = 64;

// NCCL's type for an element.
struct Mapping {
  bool known;
  NcclNumber number;
  size_t bytes;  // of one number; a complex element has two
};

// In the order of DType's numbers.
constexpr Mapping kMappings[kDTypeCount] = {
    {true, NcclNumber::kUint8, 1},    {true, NcclNumber::kInt8, 1},
    {false, NcclNumber::kUint8, 1},   {false, NcclNumber::kUint8, 1},
    {true, NcclNumber::kInt32, 4},    {true, NcclNumber::kInt64, 8},
    {true, NcclNumber::kFloat16, 2},  {true, NcclNumber::kFloat32, 4},
    {true, NcclNumber::kFloat64, 8},  {true, NcclNumber::kUint8, 1},
    {true, NcclNumber::kBfloat16, 2}, {true, NcclNumber::kUint32, 4},
    {true, NcclNumber::kUint64, 8},   {true, NcclNumber::kFloat32, 4},
    {true, NcclNumber::kFloat64, 8},
};

const Mapping& MappingOf(DType dtype) {
  return kMappings[static_cast<size_t>(dtype)];
}

// Empty if NCCL does not have the operation. Bools are 0 and 1, so Max is "or"
// and Min is "and".
std::optional<NcclReduction> ReductionOf(DType dtype, ReduceOp op) {
  const bool is_bool = dtype == DType::kBool;
  switch (op) {
    case ReduceOp::kMin:
      return NcclReduction::kMin;
    case ReduceOp::kMax:
      return NcclReduction::kMax;
    case ReduceOp::kProduct:
      return is_bool ? NcclReduction::kMin : NcclReduction::kProduct;
    case ReduceOp::kAverage:
    case ReduceOp::kSum:
      return is_bool ? NcclReduction::kMax : NcclReduction::kSum;
    case ReduceOp::kAdasum:
      break;
  }
  return std::nullopt;
}

// Types that a rank may have cast to, or may be casting to. A cast determines
// where its tensors are; calls must not depend on it.
bool MayBeCast(DType dtype) {
  return dtype == DType::kFloat16 || dtype == DType::kBfloat16;
}

class Planner {
 public:
  Planner(const OperationSpec& spec, size_t me, const GpuStaging& staging,
          const GpuLimits& limits, bool by_mpi)
      : spec_(spec),
        me_(me),
        staging_(staging),
        limits_(limits),
        by_mpi_(by_mpi),
        half_(staging.half),
        ranks_(spec.ranks->size()),
        element_(Reduces(spec.kind) ? SizeOf(spec.reduce.dtype) : 1),
        stored_(Reduces(spec.kind) ? SizeOf(StoredType(spec)) : 1) {
    if (!Reduces(spec.kind)) return;
    const ReduceOptions options = AverageAsSum(spec.reduce, ranks_);
    mapping_ = MappingOf(options.dtype);
    reduction_ = ReductionOf(options.dtype, options.op).value_or(reduction_);
    before_ = {options.dtype, options.prescale, 1.0};
    after_ = {options.dtype, options.postscale, options.divisor};
    if (Casts()) {
      before_.cast = Scaling::Cast::kNarrow;
      after_.cast = Scaling::Cast::kWiden;
    }
    if (options.dtype == DType::kBool) {
      before_.factor = 1.0;
      after_ = {};  // already 0 and 1
    }
  }

  GpuPlan Plan() {
    if (ranks_ == 1 && !Casts()) {
      PlanAlone();
    } else if (YieldOf(spec_.kind) == Yield::kSentRows) {
      PlanSentRows();
    } else if (ListsRanks(spec_.kind) && ranks_ > 1) {
      PlanByRank();
    } else {
      PlanAlike();
    }
    plan_.next_half = half_;
    return std::move(plan_);
  }

 private:
  bool Casts() const { return StoredType(spec_) != spec_.reduce.dtype; }

  void Add(const MoveBuilder& pack, std::vector<GpuStep> steps,
           const MoveBuilder& unpack, unsigned uses) {
    GpuPiece piece{pack.Build(), std::move(steps), unpack.Build(), uses};
    if (piece.pack.empty() && piece.steps.empty() && piece.unpack.empty()) {
      return;
    }
    plan_.pieces.push_back(std::move(piece));
  }

  // The half for the next piece's packed tensors.
  char* TakeHalf(unsigned* uses) {
    *uses |= half_;
    char* const memory =
        staging_.memory + (half_ == kFirstHalf ? 0 : HalfBytes());
    half_ = half_ == kFirstHalf ? kSecondHalf : kFirstHalf;
    return memory;
  }
  size_t HalfBytes() const {
    return staging_.bytes / 2 / kPieceAlign * kPieceAlign;
  }

  GpuCall CallOf(const void* input, void* output, int64_t elements) const {
    GpuCall call;
    call.kind = spec_.kind;
    call.input = input;
    call.output = output;
    call.count = NumbersOf(elements);
    call.number = mapping_.number;
    call.reduction = reduction_;
    call.root = static_cast<int>(spec_.root);
    return call;
  }

  // Number of NCCL's elements.
  size_t NumbersOf(int64_t elements) const {
    return static_cast<size_t>(elements) * element_ / mapping_.bytes;
  }
  // Each tensor starts where a kernel can move 16 bytes at once. The gaps, and
  // their sums, are never read.
  int64_t Padded(int64_t elements) const {
    const auto unit = static_cast<int64_t>(16 / element_);
    return (elements + unit - 1) / unit * unit;
  }
  int64_t BytesOf(int64_t elements) const {
    return elements * static_cast<int64_t>(element_);
  }

  // Maximum elements of a piece if a half must hold `times` of them.
  int64_t PieceOf(size_t times) const {
    const size_t bytes = HalfBytes() / times / kPieceAlign * kPieceAlign;
    return static_cast<int64_t>(bytes / element_);
  }
  int64_t ElementsOf(size_t bytes) const {
    return static_cast<int64_t>(
        std::max(bytes / kPieceAlign * kPieceAlign, kPieceAlign) / element_);
  }

  void PlanAlone() {
    MoveBuilder first(before_);
    MoveBuilder second(after_);
    for (const Span& span : spec_.spans) {
      first.Add(span.input, span.output, BytesOf(span.count));
      second.Add(span.output, span.output, BytesOf(span.count));
    }
    if (YieldOf(spec_.kind) == Yield::kSentRows) {
      first.Add(spec_.input, spec_.output, spec_.send[0]);
    }
    Add(first, {}, second, 0);
  }

  void PlanSentRows() {
    GpuCall call = CallOf(spec_.input, spec_.output, 0);
    call.send = spec_.send;
    call.receive = spec_.receive;
    Add(MoveBuilder({}), {std::move(call)}, MoveBuilder({}), 0);
  }

  // Tensors of one piece.
  struct Batch {
    std::vector<Span> packed;
    int64_t packed_count = 0;
    std::vector<Span> in_place;
    int64_t in_place_count = 0;
  };

  // Limits for dividing tensors; in elements.
  struct Cuts {
    int64_t half;     // of the staging memory
    int64_t large;    // larger tensors are not packed
    int64_t of_call;  // total of these in one call
    bool single;      // each of these is a separate call
  };

  Cuts FindCuts() const {
    // If a rank may cast, all ranks divide as that rank does, which puts
    // everything in the staging memory.
    const int64_t half = PieceOf(1);
    const bool may_cast = Reduces(spec_.kind) && MayBeCast(spec_.reduce.dtype);
    if (may_cast) return {half, half, half, true};
    return {half, std::min(half, ElementsOf(limits_.in_place_bytes)),
            ElementsOf(limits_.call_bytes), by_mpi_};
  }

  // The same run on all ranks, divided into pieces.
  void PlanAlike() {
    const Cuts cuts = FindCuts();
    Batch batch;
    for (const Span& span : spec_.spans) {
      if (spec_.spans.size() == 1 || span.count >= cuts.large) {
        AddLarge(span, cuts, &batch);
        continue;
      }
      if (batch.packed_count + span.count > cuts.half) PlanBatch(&batch);
      if (span.count > 0) Pack(span, &batch);
    }
    PlanBatch(&batch);
  }

  void Pack(const Span& span, Batch* batch) const {
    batch->packed.push_back(span);
    batch->packed_count += Padded(span.count);
  }

  void AddLarge(const Span& span, const Cuts& cuts, Batch* batch) {
    for (int64_t at = 0; at < span.count; at += cuts.of_call) {
      const Span part =
          PartOf(span, at, std::min(cuts.of_call, span.count - at));
      if (cuts.single || batch->in_place_count + part.count > cuts.of_call) {
        PlanBatch(batch);
      }
      if (Casts()) {
        Pack(part, batch);
      } else {
        batch->in_place.push_back(part);
        batch->in_place_count += part.count;
      }
      if (cuts.single) PlanBatch(batch);
    }
  }

  Span PartOf(const Span& span, int64_t at, int64_t count) const {
    Span part;
    part.count = count;
    const auto offset = static_cast<size_t>(at) * stored_;
    if (span.input != nullptr) {
      part.input = static_cast<const char*>(span.input) + offset;
    }
    if (span.output != nullptr) {
      part.output = static_cast<char*>(span.output) + offset;
    }
    return part;
  }

  bool Gives() const { return tf_hvd::Gives(spec_, me_); }

  // A piece that is being planned.
  struct Open {
    MoveBuilder pack;
    MoveBuilder unpack;
    unsigned uses = 0;
    std::vector<GpuBuffer> buffers;
  };

  // Starts a new piece as well.
  void PlanBatch(Batch* filled) {
    const Batch batch = std::exchange(*filled, Batch());
    if (batch.packed.empty() && batch.in_place.empty()) return;
    Open open{MoveBuilder(before_), MoveBuilder(after_), 0, {}};
    AddPacked(batch, &open);
    AddInPlace(batch, &open);
    std::vector<GpuStep> steps;
    if (ranks_ > 1) steps.emplace_back(CallOf(open.buffers));
    Add(open.pack, std::move(steps), open.unpack, open.uses);
  }

  void AddPacked(const Batch& batch, Open* open) {
    if (batch.packed.empty()) return;
    char* at = TakeHalf(&open->uses);
    const int64_t last = batch.packed.back().count;  // not padded
    open->buffers.push_back(
        {at, at, NumbersOf(batch.packed_count - Padded(last) + last)});
    for (const Span& span : batch.packed) {
      if (Gives()) open->pack.Add(span.input, at, BytesOf(span.count));
      open->unpack.Add(at, span.output, BytesOf(span.count));
      at += BytesOf(Padded(span.count));
    }
  }

  void AddInPlace(const Batch& batch, Open* open) {
    char* zeros = ZerosFor(batch, &open->uses);
    for (const Span& span : batch.in_place) {
      // A rank that has joined contributes zeros and needs no result.
      const bool joined = span.output == nullptr;
      void* const output = joined ? zeros : span.output;
      if (joined) zeros += BytesOf(Padded(span.count));
      const bool made = Gives() && (before_.needed() || joined);
      if (made) open->pack.Add(span.input, output, BytesOf(span.count));
      open->buffers.push_back({Gives() && !made ? span.input : output, output,
                               NumbersOf(span.count)});
      if (!joined) open->unpack.Add(output, output, BytesOf(span.count));
    }
  }

  // Memory with zeros for the tensors that a rank which has joined does not
  // have: in a half, or in the spare memory. Null if it has them all.
  char* ZerosFor(const Batch& batch, unsigned* uses) {
    size_t bytes = 0;
    for (const Span& span : batch.in_place) {
      if (span.output == nullptr) {
        bytes += static_cast<size_t>(BytesOf(Padded(span.count)));
      }
    }
    if (bytes == 0) return nullptr;
    if (*uses == 0 && bytes <= HalfBytes()) return TakeHalf(uses);
    plan_.spare_bytes = std::max(plan_.spare_bytes, bytes);
    *uses |= kSpare;
    // Without the memory, the plan only computes the required size.
    return staging_.spare != nullptr ? staging_.spare : staging_.memory;
  }

  GpuCall CallOf(const std::vector<GpuBuffer>& buffers) const {
    GpuCall call = CallOf(buffers[0].input, buffers[0].output, 0);
    call.count = buffers[0].count;
    call.others.assign(buffers.begin() + 1, buffers.end());
    return call;
  }

  // Each rank's run, padded to the longest and divided into pieces that are
  // contiguous rank by rank. The padding is never read.
  void PlanByRank() {
    const RankRuns runs(spec_.spans, stored_, ranks_);
    if (YieldOf(spec_.kind) == Yield::kAllRows && IsOneTensor(runs)) {
      const Span& mine = spec_.spans[me_];
      Add(MoveBuilder({}),
          {CallOf(mine.input, spec_.spans[0].output, mine.count)},
          MoveBuilder({}), 0);
      return;
    }
    const int64_t most = PieceOf(ranks_);
    for (int64_t at = 0; at < runs.Longest(); at += most) {
      PlanPiece(runs, at, std::min(most, runs.Longest() - at));
    }
  }

  // One tensor with the same size on all ranks: nothing is padded, and the
  // outputs are contiguous.
  bool IsOneTensor(const RankRuns& runs) const {
    const int64_t count = spec_.spans[0].count;
    return runs.each() == 1 && count > 0 &&
           std::all_of(spec_.spans.begin(), spec_.spans.end(),
                       [&](const Span& span) { return span.count == count; });
  }

  void PlanPiece(const RankRuns& runs, int64_t at, int64_t count) {
    const bool gathers = YieldOf(spec_.kind) == Yield::kAllRows;
    MoveBuilder pack(before_);
    MoveBuilder unpack(after_);
    unsigned uses = 0;
    char* const half = TakeHalf(&uses);
    runs.ForEachInPiece(at, count,
                        [&](size_t place, const char* input, char* output,
                            int64_t offset, int64_t elements) {
                          const bool mine = place == me_;
                          char* const to = half + BytesOf(offset);
                          if (mine || !gathers)
                            pack.Add(input, to, BytesOf(elements));
                          if (mine || gathers)
                            unpack.Add(to, output, BytesOf(elements));
                        });
    char* const mine = half + BytesOf(count * static_cast<int64_t>(me_));
    Add(pack, {gathers ? CallOf(mine, half, count) : CallOf(half, mine, count)},
        unpack, uses);
  }

  const OperationSpec& spec_;
  const size_t me_;
  const GpuStaging staging_;
  const GpuLimits limits_;
  const bool by_mpi_;
  GpuMemory half_;
  const size_t ranks_;
  const size_t element_;  // bytes, as sent
  const size_t stored_;   // bytes, in memory
  Mapping mapping_{true, NcclNumber::kUint8, 1};
  NcclReduction reduction_ = NcclReduction::kSum;
  Scaling before_;
  Scaling after_;
  GpuPlan plan_;
};

// Executes all steps in sequence; they may use any memory.
GpuPlan InOrder(std::vector<GpuStep> steps, GpuMemory half) {
  GpuPlan plan;
  plan.next_half = half;
  if (steps.empty()) return plan;
  plan.pieces.push_back({{}, std::move(steps), {}, kFirstHalf | kSecondHalf});
  return plan;
}

}  // namespace

bool NcclCanDo(const OperationSpec& spec) {
  if (!Reduces(spec.kind)) return true;
  const DType dtype = spec.reduce.dtype;
  const ReduceOp op = spec.reduce.op;
  if (!MappingOf(dtype).known || !IsReducible(dtype, op)) return false;
  if (!ReductionOf(dtype, op).has_value()) return false;
  const bool orders = op == ReduceOp::kMin || op == ReduceOp::kMax;
  if (orders && IsFloating(dtype)) return false;
  return !(op == ReduceOp::kProduct && IsComplex(dtype));
}

bool MpiCanDo(const OperationSpec& spec) {
  return !Reduces(spec.kind) || IsSum(spec);
}

GpuPlan PlanOnGpu(const OperationSpec& spec, size_t me,
                  const GpuStaging& staging, const GpuLimits& limits,
                  bool by_mpi) {
  if (by_mpi && IsSum(spec)) {
    return InOrder(PlanSum(spec, me, staging), staging.half);
  }
  return Planner(spec, me, staging, limits, by_mpi).Plan();
}

}  // namespace tf_hvd
