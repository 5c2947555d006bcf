#include "runtime/transport/gpu/sum_plan.h"

#include <algorithm>
#include <string>
#include <utility>

#include "runtime/contract/spans.h"

namespace tf_hvd {
namespace {

// The kernel that adds such numbers: signed sums have the same bits as unsigned
// ones; complex numbers are added component by component.
std::string KernelFor(DType dtype) {
  const size_t part = IsComplex(dtype) ? SizeOf(dtype) / 2 : SizeOf(dtype);
  const bool has_fractions = IsFloating(dtype) || IsComplex(dtype);
  return std::string("tf_hvd_sum_") + (has_fractions ? "float" : "uint") +
         std::to_string(8 * part);
}

class SumPlanner {
 public:
  SumPlanner(const OperationSpec& spec, size_t me, const GpuStaging& staging)
      : spec_(spec),
        me_(static_cast<int64_t>(me)),
        ranks_(static_cast<int64_t>(spec.ranks->size())),
        options_(AverageAsSum(spec.reduce, spec.ranks->size())),
        accumulator_(AccumulatorOf(options_.dtype)),
        is_half_(accumulator_ != options_.dtype),
        element_(SizeOf(options_.dtype)),
        most_(MostOf(staging.bytes)),
        given_(staging.memory),
        received_(At(given_, ranks_ * most_)),
        wide_(At(received_, ranks_ * most_)),
        sum_(wide_ + ranks_ * most_ * WideBytes()) {
    before_ = {options_.dtype, options_.prescale, 1.0};
    after_ = {options_.dtype, options_.postscale, options_.divisor};
    // For a half-precision type, the sum is scaled before it is rounded.
    if (is_half_) after_ = {options_.dtype, 1.0, 1.0};
    if (StoredType(spec) == options_.dtype) return;
    before_.cast = Scaling::Cast::kNarrow;
    after_.cast = Scaling::Cast::kWiden;
  }

  std::vector<GpuStep> Plan() {
    if (ListsRanks(spec_.kind)) {
      PlanByRank();
    } else {
      PlanAlike();
    }
    return std::move(steps_);
  }

 private:
  static constexpr int64_t kAlign = 16;  // elements

  static int64_t WideBytes() { return static_cast<int64_t>(sizeof(float)); }

  // Maximum elements of a rank's part of a piece. The staging memory holds the
  // data sent to all ranks and received from all. For half-precision types it
  // also holds the received data and the sum as float32.
  int64_t MostOf(size_t bytes) const {
    const auto element = static_cast<int64_t>(element_);
    const int64_t wide = is_half_ ? (ranks_ + 1) * WideBytes() : 0;
    const int64_t each = 2 * ranks_ * element + wide;
    return static_cast<int64_t>(bytes) / each / kAlign * kAlign;
  }

  int64_t BytesOf(int64_t elements) const {
    return elements * static_cast<int64_t>(element_);
  }
  char* At(char* begin, int64_t elements) const {
    return begin + BytesOf(elements);
  }

  void Move(const MoveBuilder& builder) {
    GpuMove move = builder.Build();
    if (!move.empty()) steps_.emplace_back(std::move(move));
  }

  // The tensors are one run; each rank adds a part of it.
  void PlanAlike() {
    const SpanList list(spec_.spans, SizeOf(StoredType(spec_)));
    const int64_t most = ranks_ * most_;
    for (int64_t at = 0; at < list.count(); at += most) {
      const int64_t count = std::min(most, list.count() - at);
      MoveBuilder pack(before_);
      MoveBuilder unpack(after_);
      char* place = given_;
      list.ForEach(at, count,
                   [&](const char* input, char* output, int64_t elements) {
                     pack.Add(input, place, BytesOf(elements));
                     unpack.Add(place, output, BytesOf(elements));
                     place = At(place, elements);
                   });
      const int64_t part = (count + ranks_ - 1) / ranks_;
      Move(pack);
      Exchange(part);
      Add(part);
      Gather(part);
      Move(unpack);
    }
  }

  // Each rank's run, padded to the longest.
  void PlanByRank() {
    const RankRuns runs(spec_.spans, SizeOf(StoredType(spec_)),
                        spec_.ranks->size());
    for (int64_t at = 0; at < runs.Longest(); at += most_) {
      PlanPiece(runs, at, std::min(most_, runs.Longest() - at));
    }
  }

  void PlanPiece(const RankRuns& runs, int64_t at, int64_t part) {
    MoveBuilder pack(before_);
    MoveBuilder unpack(after_);
    runs.ForEachInPiece(at, part,
                        [&](size_t place, const char* input, char* output,
                            int64_t offset, int64_t elements) {
                          char* const to = At(given_, offset);
                          pack.Add(input, to, BytesOf(elements));
                          if (static_cast<int64_t>(place) == me_) {
                            unpack.Add(to, output, BytesOf(elements));
                          }
                        });
    Move(pack);
    Exchange(part);
    Add(part);
    Move(unpack);
  }

  void Exchange(int64_t part) {
    GpuCall call;
    call.kind = OpKind::kAlltoall;
    call.input = given_;
    call.output = received_;
    call.send.assign(spec_.ranks->size(), BytesOf(part));
    call.receive = call.send;
    steps_.emplace_back(std::move(call));
  }

  // The sum replaces this rank's part of its sent data.
  void Add(int64_t part) {
    char* const mine = At(given_, part * me_);
    if (!is_half_) return Launch(received_, mine, part);
    steps_.emplace_back(CastMove({{received_, wide_, ranks_ * part}},
                                 options_.dtype, accumulator_, 1.0));
    Launch(wide_, sum_, part);
    steps_.emplace_back(CastMove({{sum_, mine, part}}, accumulator_,
                                 options_.dtype, options_.postscale,
                                 options_.divisor));
  }

  void Launch(const char* vectors, char* sum, int64_t part) {
    GpuSum add;
    add.kernel = KernelFor(accumulator_);
    add.arguments = {vectors, sum, ranks_,
                     IsComplex(accumulator_) ? 2 * part : part};
    steps_.emplace_back(std::move(add));
  }

  void Gather(int64_t part) {
    GpuCall call;
    call.kind = OpKind::kAllgather;
    call.input = At(given_, part * me_);
    call.output = given_;
    call.count = static_cast<size_t>(BytesOf(part));
    steps_.emplace_back(std::move(call));
  }

  const OperationSpec& spec_;
  const int64_t me_;
  const int64_t ranks_;
  const ReduceOptions options_;
  const DType accumulator_;
  const bool is_half_;
  const size_t element_;  // bytes, as sent
  const int64_t most_;
  // In the staging memory: one part sent to, and one received from, each rank;
  // the received parts as float32; and their sum.
  char* const given_;
  char* const received_;
  char* const wide_;
  char* const sum_;
  Scaling before_;
  Scaling after_;
  std::vector<GpuStep> steps_;
};

}  // namespace

bool IsSum(const OperationSpec& spec) {
  const ReduceOp op = spec.reduce.op;
  return Reduces(spec.kind) && spec.reduce.dtype != DType::kBool &&
         (op == ReduceOp::kSum || op == ReduceOp::kAverage);
}

std::vector<GpuStep> PlanSum(const OperationSpec& spec, size_t me,
                             const GpuStaging& staging) {
  return SumPlanner(spec, me, staging).Plan();
}

}  // namespace tf_hvd
