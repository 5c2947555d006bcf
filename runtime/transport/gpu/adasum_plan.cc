#include "runtime/transport/gpu/adasum_plan.h"

#include <algorithm>
#include <string>
#include <utility>

#include "runtime/transport/spans.h"

namespace tf_hvd {
namespace {

constexpr size_t kAlign = 64;

size_t Aligned(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

int64_t TilesOf(int64_t count) {
  return (count + GpuAdasum::kTile - 1) / GpuAdasum::kTile;
}

// Some tensors that are reduced together, and the memory that it takes.
class Batch {
 public:
  explicit Batch(size_t element) : element_(element) {}

  bool empty() const { return spans_.empty(); }
  void Add(const Span& span) {
    spans_.push_back(span);
    tensors_.push_back({count_, count_ + span.count});
    count_ += span.count;
    tiles_ += TilesOf(span.count);
  }

  const std::vector<Span>& spans() const { return spans_; }
  const std::vector<Range>& tensors() const { return tensors_; }
  int64_t count() const { return count_; }

  // One behind the other: two vectors, this rank's products and another's, and
  // those of the tiles.
  size_t vector_bytes() const { return VectorBytes(count_); }
  size_t product_bytes() const { return ProductBytes(spans_.size()); }
  size_t BytesWith(const Span& span) const {
    return 2 * VectorBytes(count_ + span.count) +
           2 * ProductBytes(spans_.size() + 1) +
           ProductBytes(static_cast<size_t>(tiles_ + TilesOf(span.count)));
  }

 private:
  size_t VectorBytes(int64_t count) const {
    return Aligned(static_cast<size_t>(count) * element_);
  }
  static size_t ProductBytes(size_t count) {
    return Aligned(count * sizeof(AdasumProducts));
  }

  size_t element_;
  std::vector<Span> spans_;
  std::vector<Range> tensors_;  // of the run of all elements
  int64_t count_ = 0;
  int64_t tiles_ = 0;
};

class AdasumPlanner {
 public:
  AdasumPlanner(const OperationSpec& spec, size_t me, char* staging)
      : options_(spec.reduce),
        casts_(StoredType(spec) != spec.reduce.dtype),
        accumulator_(AccumulatorOf(spec.reduce.dtype)),
        element_(SizeOf(accumulator_)),
        ranks_(spec.ranks->size()),
        me_(me),
        mine_(staging) {
    while (tree_ * 2 <= ranks_) tree_ *= 2;
  }

  void Plan(const Batch& batch) {
    batch_ = &batch;
    theirs_ = mine_ + batch.vector_bytes();
    products_ = theirs_ + batch.vector_bytes();
    incoming_ = products_ + batch.product_bytes();
    partials_ = incoming_ + batch.product_bytes();
    Load();
    Combine();
    Store();
  }

  std::vector<GpuStep> Take() { return std::move(steps_); }

 private:
  void Append(GpuMove move) {
    if (!move.empty()) steps_.emplace_back(std::move(move));
  }

  // From tensors to tensors, or to and from accumulators of the same type.
  void MoveAll(const std::vector<MoveRow>& rows, const Scaling& scaling) {
    MoveBuilder builder(scaling);
    for (const MoveRow& row : rows) {
      builder.Add(row.input, row.output,
                  row.end * static_cast<int64_t>(SizeOf(scaling.dtype)));
    }
    Append(builder.Build());
  }

  // Where a tensor that is cast to a half precision, or from one, lies between.
  char* HalfOf(size_t tensor) const {
    return theirs_ + static_cast<size_t>(batch_->tensors()[tensor].begin) *
                         SizeOf(options_.dtype);
  }

  void Load() {
    std::vector<MoveRow> narrow;
    std::vector<MoveRow> load;
    for (size_t t = 0; t < batch_->spans().size(); ++t) {
      const Span& span = batch_->spans()[t];
      const bool casts = casts_ && span.input != nullptr;
      const void* const input = casts ? HalfOf(t) : span.input;
      if (casts) narrow.push_back({span.input, HalfOf(t), span.count});
      load.push_back(
          {input, At(mine_, batch_->tensors()[t].begin), span.count});
    }
    MoveAll(narrow, {options_.dtype, 1.0, 1.0, Scaling::Cast::kNarrow});
    if (accumulator_ != options_.dtype) {
      Append(CastMove(load, options_.dtype, accumulator_, options_.prescale));
    } else {
      MoveAll(load, {accumulator_, options_.prescale, 1.0});
    }
  }

  void Store() {
    std::vector<MoveRow> store;
    std::vector<MoveRow> widen;
    for (size_t t = 0; t < batch_->spans().size(); ++t) {
      const Span& span = batch_->spans()[t];
      const bool casts = casts_ && span.output != nullptr;
      void* const output = casts ? HalfOf(t) : span.output;
      if (casts) widen.push_back({HalfOf(t), span.output, span.count});
      store.push_back(
          {At(mine_, batch_->tensors()[t].begin), output, span.count});
    }
    if (accumulator_ != options_.dtype) {
      Append(CastMove(store, accumulator_, options_.dtype, options_.postscale));
    } else {
      MoveAll(store, {accumulator_, options_.postscale, 1.0});
    }
    MoveAll(widen, {options_.dtype, 1.0, 1.0, Scaling::Cast::kWiden});
  }

  void Combine() {
    const Range all{0, batch_->count()};
    const bool lends = me_ >= tree_;
    const bool hosts = me_ + tree_ < ranks_;
    if (ranks_ > tree_) {
      Exchange(lends ? me_ - tree_ : me_ + tree_, mine_, lends ? all : Range{},
               theirs_, hosts ? all : Range{});
      if (hosts) {
        Multiply(all, /*mine_first=*/true);
        Sum(all, /*mine_first=*/true);
      }
    }
    Halve(lends);
    if (ranks_ > tree_) {
      Exchange(lends ? me_ - tree_ : me_ + tree_, mine_, hosts ? all : Range{},
               mine_, lends ? all : Range{});
    }
  }

  // Down: at each distance the partner gets one half of what I hold and gives
  // me its share of the other. Up: the halves come back.
  void Halve(bool idle) {
    std::vector<Range> held = {{0, idle ? 0 : batch_->count()}};
    for (size_t distance = 1; distance < tree_; distance *= 2) {
      const bool first = (me_ & distance) == 0;
      const Range range = held.back();
      const int64_t middle = range.begin + range.count() / 2;
      const Range low{range.begin, middle};
      const Range high{middle, range.end};
      const Range keep = first ? low : high;
      Exchange(me_ ^ distance, mine_, first ? high : low, theirs_, keep);
      if (!idle) Multiply(keep, first);
      SumProducts(distance * 2, idle);
      if (!idle) Sum(keep, first);
      held.push_back(keep);
    }
    for (size_t distance = tree_ / 2; distance > 0; distance /= 2) {
      const Range mine = held.back();
      held.pop_back();
      const Range whole = held.back();
      const Range other = mine.begin == whole.begin
                              ? Range{mine.end, whole.end}
                              : Range{whole.begin, mine.begin};
      Exchange(me_ ^ distance, mine_, mine, mine_, other);
    }
  }

  // Sums over the `block` places that hold pieces of the same two vectors. Both
  // sides of a pair add the same two numbers: all get the same bits.
  void SumProducts(size_t block, bool idle) {
    const auto rows = static_cast<int64_t>(batch_->spans().size());
    const auto bytes =
        idle ? 0 : rows * static_cast<int64_t>(sizeof(AdasumProducts));
    for (size_t distance = 1; distance < block; distance *= 2) {
      Call(me_ ^ distance, products_, bytes, incoming_, bytes);
      if (idle) continue;
      GpuAdasum add = Launch("tf_hvd_add_products");
      add.arguments.row_count = rows;
      add.blocks = static_cast<unsigned>((rows + GpuAdasum::kThreads - 1) /
                                         GpuAdasum::kThreads);
      steps_.emplace_back(std::move(add));
    }
  }

  void Exchange(size_t partner, const char* from, const Range& send, char* to,
                const Range& receive) {
    const auto element = static_cast<int64_t>(element_);
    Call(partner, At(from, send.begin), send.count() * element,
         At(to, receive.begin), receive.count() * element);
  }

  void Call(size_t partner, const void* input, int64_t send, void* output,
            int64_t receive) {
    GpuCall call;
    call.kind = OpKind::kAlltoall;
    call.input = input;
    call.output = output;
    call.send.resize(ranks_);
    call.receive.resize(ranks_);
    // A rank that is idle has a partner that is not there.
    if (send > 0) call.send[partner] = send;
    if (receive > 0) call.receive[partner] = receive;
    steps_.emplace_back(std::move(call));
  }

  GpuAdasum Launch(const std::string& kernel) const {
    GpuAdasum launch;
    launch.kernel = kernel;
    launch.arguments.tile = GpuAdasum::kTile;
    launch.arguments.partials = reinterpret_cast<AdasumProducts*>(partials_);
    launch.arguments.products = reinterpret_cast<AdasumProducts*>(products_);
    launch.arguments.incoming =
        reinterpret_cast<const AdasumProducts*>(incoming_);
    return launch;
  }

  // A launch on the parts of all tensors that lie in the range.
  GpuAdasum LaunchOn(const std::string& kernel, const Range& range,
                     bool mine_first) const {
    GpuAdasum launch = Launch(kernel);
    int64_t tiles = 0;
    for (const Range& tensor : batch_->tensors()) {
      const int64_t begin = std::max(range.begin, tensor.begin);
      const int64_t end = std::max(begin, std::min(range.end, tensor.end));
      tiles += TilesOf(end - begin);
      char* const mine = At(mine_, begin);
      char* const theirs = At(theirs_, begin);
      launch.rows.push_back({mine_first ? mine : theirs,
                             mine_first ? theirs : mine, mine, end - begin,
                             tiles});
    }
    launch.arguments.row_count = static_cast<int64_t>(launch.rows.size());
    launch.blocks = static_cast<unsigned>(tiles);
    return launch;
  }

  void Multiply(const Range& range, bool mine_first) {
    GpuAdasum dot = LaunchOn(std::string("tf_hvd_dot_") + NameOf(accumulator_),
                             range, mine_first);
    GpuAdasum fold = dot;
    fold.kernel = "tf_hvd_fold_products";
    fold.blocks = static_cast<unsigned>(fold.rows.size());
    if (dot.blocks > 0) steps_.emplace_back(std::move(dot));
    steps_.emplace_back(std::move(fold));
  }

  void Sum(const Range& range, bool mine_first) {
    GpuAdasum combine =
        LaunchOn(std::string("tf_hvd_combine_") + NameOf(accumulator_), range,
                 mine_first);
    if (combine.blocks > 0) steps_.emplace_back(std::move(combine));
  }

  template <typename Byte>
  Byte* At(Byte* vector, int64_t at) const {
    return vector + at * static_cast<int64_t>(element_);
  }

  const ReduceOptions options_;
  const bool
      casts_;  // tensors are float32, and are reduced as a half precision
  const DType accumulator_;
  const size_t element_;
  const size_t ranks_;
  const size_t me_;
  size_t tree_ = 1;  // the largest power of two that is not above the size
  const Batch* batch_ = nullptr;
  char* const mine_;
  char* theirs_ = nullptr;
  char* products_ = nullptr;
  char* incoming_ = nullptr;
  char* partials_ = nullptr;
  std::vector<GpuStep> steps_;
};

size_t ElementOf(const OperationSpec& spec) {
  return SizeOf(AccumulatorOf(spec.reduce.dtype));
}

}  // namespace

bool IsAdasum(const OperationSpec& spec) {
  return spec.kind == OpKind::kAllreduce &&
         spec.reduce.op == ReduceOp::kAdasum && IsFloating(spec.reduce.dtype);
}

bool AdasumFits(const OperationSpec& spec, size_t staging_bytes) {
  const Batch none(ElementOf(spec));
  return std::all_of(
      spec.spans.begin(), spec.spans.end(),
      [&](const Span& span) { return none.BytesWith(span) <= staging_bytes; });
}

std::vector<GpuStep> PlanAdasum(const OperationSpec& spec, size_t me,
                                const GpuStaging& staging) {
  AdasumPlanner planner(spec, me, staging.memory);
  Batch batch(ElementOf(spec));
  for (const Span& span : spec.spans) {
    if (span.count == 0) continue;
    if (!batch.empty() && batch.BytesWith(span) > staging.bytes) {
      planner.Plan(batch);
      batch = Batch(ElementOf(spec));
    }
    batch.Add(span);
  }
  if (!batch.empty()) planner.Plan(batch);
  return planner.Take();
}

}  // namespace tf_hvd
