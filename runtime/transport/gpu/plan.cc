#include "runtime/transport/gpu/plan.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "runtime/transport/gpu/adasum_plan.h"
#include "runtime/transport/gpu/sum_plan.h"
#include "runtime/transport/spans.h"

namespace tf_hvd {
namespace {

// Pieces begin where any element is aligned.
constexpr size_t kPieceAlign = 64;

// How NCCL sees an element.
struct Mapping {
  bool known;
  NcclNumber number;
  size_t bytes;  // of a number; a complex one is two
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

// Bools are 0 and 1: or is Max, and is Min.
NcclReduction ReductionOf(DType dtype, ReduceOp op) {
  const bool is_bool = dtype == DType::kBool;
  switch (op) {
    case ReduceOp::kMin:
      return NcclReduction::kMin;
    case ReduceOp::kMax:
      return NcclReduction::kMax;
    case ReduceOp::kProduct:
      return is_bool ? NcclReduction::kMin : NcclReduction::kProduct;
    default:
      return is_bool ? NcclReduction::kMax : NcclReduction::kSum;
  }
}

class Planner {
 public:
  Planner(const OperationSpec& spec, size_t me, const GpuStaging& staging)
      : spec_(spec),
        me_(me),
        staging_(staging),
        ranks_(spec.ranks->size()),
        element_(Reduces(spec.kind) ? SizeOf(spec.reduce.dtype) : 1),
        stored_(Reduces(spec.kind) ? SizeOf(StoredType(spec)) : 1) {
    if (!Reduces(spec.kind)) return;
    const ReduceOptions options = AverageAsSum(spec.reduce, ranks_);
    mapping_ = MappingOf(options.dtype);
    reduction_ = ReductionOf(options.dtype, options.op);
    before_ = {options.dtype, options.prescale, 1.0};
    after_ = {options.dtype, options.postscale, options.divisor};
    if (Casts()) {
      before_.cast = Scaling::Cast::kNarrow;
      after_.cast = Scaling::Cast::kWiden;
    }
    if (options.dtype == DType::kBool) {
      before_.factor = 1.0;
      after_ = {};  // 0 and 1 already
    }
  }

  std::vector<GpuStep> Plan() {
    if (ranks_ == 1 && !Casts()) {
      PlanAlone();
    } else if (spec_.kind == OpKind::kAlltoall) {
      PlanAlltoall();
    } else if (spec_.kind == OpKind::kAllreduce ||
               spec_.kind == OpKind::kBroadcast || ranks_ == 1) {
      PlanAlike();
    } else {
      PlanByRank();
    }
    return std::move(steps_);
  }

 private:
  bool Casts() const { return StoredType(spec_) != spec_.reduce.dtype; }

  void Move(const MoveBuilder& builder) {
    GpuMove move = builder.Build();
    if (!move.empty()) steps_.emplace_back(std::move(move));
  }

  GpuCall CallOf(const void* input, void* output, int64_t elements) const {
    GpuCall call;
    call.kind = spec_.kind;
    call.input = input;
    call.output = output;
    call.count = static_cast<size_t>(elements) * element_ / mapping_.bytes;
    call.number = mapping_.number;
    call.reduction = reduction_;
    call.root = static_cast<int>(spec_.root);
    return call;
  }

  int64_t BytesOf(int64_t elements) const {
    return elements * static_cast<int64_t>(element_);
  }

  // The most elements of a piece of which the staging memory holds `times`.
  int64_t PieceOf(size_t times) const {
    const size_t bytes = staging_.bytes / times / kPieceAlign * kPieceAlign;
    return static_cast<int64_t>(bytes / element_);
  }

  void PlanAlone() {
    MoveBuilder first(before_);
    MoveBuilder second(after_);
    for (const Span& span : spec_.spans) {
      first.Add(span.input, span.output, BytesOf(span.count));
      second.Add(span.output, span.output, BytesOf(span.count));
    }
    if (spec_.kind == OpKind::kAlltoall) {
      first.Add(spec_.input, spec_.output, spec_.send[0]);
    }
    Move(first);
    Move(second);
  }

  void PlanAlltoall() {
    GpuCall call = CallOf(spec_.input, spec_.output, 0);
    call.send = spec_.send;
    call.receive = spec_.receive;
    steps_.emplace_back(std::move(call));
  }

  // Allreduce and broadcast: the same run on all ranks, cut into pieces. A
  // tensor that fills pieces by itself is not packed.
  void PlanAlike() {
    const int64_t most = PieceOf(1);
    std::vector<Span> packed;
    int64_t count = 0;
    const auto flush = [&] {
      if (count > 0) PlanPacked(packed, count);
      packed.clear();
      count = 0;
    };
    for (const Span& span : spec_.spans) {
      if (spec_.spans.size() == 1 || span.count >= most) {
        flush();
        for (int64_t at = 0; at < span.count; at += most) {
          const Span part = PartOf(span, at, std::min(most, span.count - at));
          if (Casts()) {
            PlanPacked({part}, part.count);
          } else {
            PlanDirect(part);
          }
        }
        continue;
      }
      if (count + span.count > most) flush();
      if (span.count > 0) packed.push_back(span);
      count += span.count;
    }
    flush();
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

  // Whose input counts.
  bool Gives() const {
    return spec_.kind != OpKind::kBroadcast || me_ == spec_.root;
  }

  void PlanDirect(const Span& span) {
    const bool in_place = before_.needed() || span.input == nullptr;
    // A rank that has joined gives zeros and wants nothing.
    void* const at = span.output == nullptr ? staging_.memory : span.output;
    if (Gives() && in_place) {
      MoveBuilder scale(before_);
      scale.Add(span.input, at, BytesOf(span.count));
      Move(scale);
    }
    const void* const input = Gives() && !in_place ? span.input : at;
    steps_.emplace_back(CallOf(input, at, span.count));
    if (span.output == nullptr) return;
    MoveBuilder scale(after_);
    scale.Add(at, at, BytesOf(span.count));
    Move(scale);
  }

  void PlanPacked(const std::vector<Span>& spans, int64_t count) {
    MoveBuilder pack(before_);
    MoveBuilder unpack(after_);
    char* at = staging_.memory;
    for (const Span& span : spans) {
      if (Gives()) pack.Add(span.input, at, BytesOf(span.count));
      unpack.Add(at, span.output, BytesOf(span.count));
      at += BytesOf(span.count);
    }
    Move(pack);
    if (ranks_ > 1) {
      steps_.emplace_back(CallOf(staging_.memory, staging_.memory, count));
    }
    Move(unpack);
  }

  // Allgather and reducescatter: each rank's run, padded to the longest, cut
  // into pieces that lie one behind the other, rank by rank. What the padding
  // holds, and what becomes of it, nobody looks at.
  void PlanByRank() {
    const RankRuns runs(spec_.spans, stored_, ranks_);
    if (spec_.kind == OpKind::kAllgather && IsOneTensor(runs)) {
      const Span& mine = spec_.spans[me_];
      steps_.emplace_back(
          CallOf(mine.input, spec_.spans[0].output, mine.count));
      return;
    }
    const int64_t most = PieceOf(ranks_);
    for (int64_t at = 0; at < runs.Longest(); at += most) {
      PlanPiece(runs, at, std::min(most, runs.Longest() - at));
    }
  }

  // One tensor, of which all ranks have as much: nothing is padded, and the
  // outputs lie one behind the other.
  bool IsOneTensor(const RankRuns& runs) const {
    const int64_t count = spec_.spans[0].count;
    return runs.each() == 1 && count > 0 &&
           std::all_of(spec_.spans.begin(), spec_.spans.end(),
                       [&](const Span& span) { return span.count == count; });
  }

  void PlanPiece(const RankRuns& runs, int64_t at, int64_t count) {
    const bool gathers = spec_.kind == OpKind::kAllgather;
    MoveBuilder pack(before_);
    MoveBuilder unpack(after_);
    runs.ForEachInPiece(at, count,
                        [&](size_t place, const char* input, char* output,
                            int64_t offset, int64_t elements) {
                          const bool mine = place == me_;
                          char* const to = staging_.memory + BytesOf(offset);
                          if (mine || !gathers)
                            pack.Add(input, to, BytesOf(elements));
                          if (mine || gathers)
                            unpack.Add(to, output, BytesOf(elements));
                        });
    char* const mine =
        staging_.memory + BytesOf(count * static_cast<int64_t>(me_));
    Move(pack);
    steps_.emplace_back(gathers ? CallOf(mine, staging_.memory, count)
                                : CallOf(staging_.memory, mine, count));
    Move(unpack);
  }

  const OperationSpec& spec_;
  const size_t me_;
  const GpuStaging staging_;
  const size_t ranks_;
  const size_t element_;  // bytes, as it travels
  const size_t stored_;   // bytes, as it lies in memory
  Mapping mapping_{true, NcclNumber::kUint8, 1};
  NcclReduction reduction_ = NcclReduction::kSum;
  Scaling before_;
  Scaling after_;
  std::vector<GpuStep> steps_;
};

}  // namespace

bool NcclCanDo(const OperationSpec& spec, size_t staging_bytes) {
  if (!Reduces(spec.kind)) return true;
  if (IsAdasum(spec)) return AdasumFits(spec, staging_bytes);
  const DType dtype = spec.reduce.dtype;
  const ReduceOp op = spec.reduce.op;
  if (!MappingOf(dtype).known || !IsReducible(dtype, op)) return false;
  const bool orders = op == ReduceOp::kMin || op == ReduceOp::kMax;
  if (orders && IsFloating(dtype)) return false;
  return !(op == ReduceOp::kProduct && IsComplex(dtype));
}

bool MpiCanDo(const OperationSpec& spec, size_t staging_bytes) {
  if (!Reduces(spec.kind)) return true;
  return IsAdasum(spec) ? AdasumFits(spec, staging_bytes) : IsSum(spec);
}

std::vector<GpuStep> PlanOnGpu(const OperationSpec& spec, size_t me,
                               const GpuStaging& staging, bool by_mpi) {
  if (by_mpi && IsSum(spec)) return PlanSum(spec, me, staging);
  if (IsAdasum(spec) && spec.ranks->size() > 1) {
    return PlanAdasum(spec, me, staging);
  }
  return Planner(spec, me, staging).Plan();
}

}  // namespace tf_hvd
