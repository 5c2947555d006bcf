#include "runtime/transport/p2p/adasum.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "compute/adasum_cpu.h"
#include "compute/buffer_ops.h"

namespace tf_hvd {
namespace {

// Number of elements in a piece of work.
constexpr int64_t kBlock = 16384;
constexpr size_t kVectorLane = 0;
constexpr size_t kProductLane = 1;

// One for each span.
using AllProducts = std::vector<AdasumProducts>;

// One rank's part, on the accumulators of all spans, concatenated. Must exist
// as long as its steps, which refer to it.
template <typename T>
class Combiner {
 public:
  // `mine` and `theirs` have room for as many elements as the spans.
  Combiner(const RankGroup& group, const SpanList& spans, T* mine, T* theirs)
      : group_(group), mine_(mine), theirs_(theirs) {
    int64_t end = 0;
    for (const Span& span : spans.spans()) {
      tensors_.push_back({end, end + span.count});
      end += span.count;
    }
    count_ = end;
    while (tree_ * 2 <= group.size()) tree_ *= 2;
  }

  void Write(P2PPlan* plan) {
    const Range all{0, count_};
    // Places from tree_ on first pass their vector to a place of the tree.
    if (group_.me >= tree_) {
      const size_t host = group_.me - tree_;
      Send(host, all, plan);
      plan->Wait(kVectorLane);
      Receive(host, mine_, all, plan);
      return plan->Wait(kVectorLane);
    }
    const bool hosts = group_.me + tree_ < group_.size();
    if (hosts) {
      Receive(group_.me + tree_, theirs_, all, plan);
      plan->Wait(kVectorLane);
      AllProducts* const products = NewProducts();
      Multiply(all, /*mine_first=*/true, products, plan);
      Combine(all, /*mine_first=*/true, products, plan);
    }
    Halve(plan);
    if (hosts) Send(group_.me + tree_, all, plan);
    plan->Wait(kVectorLane);
  }

 private:
  // On the way down, the partner at each distance gets one half of this rank's
  // data and sends its share of the other half. On the way up the halves come
  // back.
  void Halve(P2PPlan* plan) {
    std::vector<Range> held = {{0, count_}};
    for (size_t distance = 1; distance < tree_; distance *= 2) {
      const size_t partner = group_.me ^ distance;
      const bool first = (group_.me & distance) == 0;
      const Range range = held.back();
      const int64_t middle = range.begin + range.count() / 2;
      const Range low{range.begin, middle};
      const Range high{middle, range.end};
      const Range keep = first ? low : high;
      Receive(partner, theirs_, keep, plan);
      Send(partner, first ? high : low, plan);
      plan->Wait(kVectorLane);
      AllProducts* const products = NewProducts();
      Multiply(keep, first, products, plan);
      SumProducts(distance * 2, products, plan);
      Combine(keep, first, products, plan);
      held.push_back(keep);
    }
    for (size_t distance = tree_ / 2; distance > 0; distance /= 2) {
      const Range mine = held.back();
      held.pop_back();
      const Range whole = held.back();
      const Range other = mine.begin == whole.begin
                              ? Range{mine.end, whole.end}
                              : Range{whole.begin, mine.begin};
      Receive(group_.me ^ distance, mine_, other, plan);
      Send(group_.me ^ distance, mine, plan);
      plan->Wait(kVectorLane);
    }
  }

  void Send(size_t place, const Range& range, P2PPlan* plan) const {
    plan->Send(kVectorLane, group_.ranks[place], mine_ + range.begin,
               static_cast<size_t>(range.count()) * sizeof(T));
  }
  void Receive(size_t place, T* to, const Range& range, P2PPlan* plan) const {
    plan->Receive(kVectorLane, group_.ranks[place], to + range.begin,
                  static_cast<size_t>(range.count()) * sizeof(T));
  }

  AllProducts* NewProducts() {
    products_.push_back(std::make_unique<AllProducts>(tensors_.size()));
    return products_.back().get();
  }

  // Calls visit(tensor, begin, end) for pieces of a range; no piece crosses a
  // tensor's end.
  template <typename Visit>
  void ForEach(const Range& range, const Visit& visit, P2PPlan* plan) {
    for (size_t t = 0; t < tensors_.size(); ++t) {
      const int64_t from = std::max(range.begin, tensors_[t].begin);
      const int64_t to = std::min(range.end, tensors_[t].end);
      plan->Do(to - from, kBlock, [=](int64_t begin, int64_t count) {
        visit(t, from + begin, from + begin + count);
      });
    }
  }

  void Multiply(const Range& range, bool mine_first, AllProducts* products,
                P2PPlan* plan) {
    const T* const a = mine_first ? mine_ : theirs_;
    const T* const b = mine_first ? theirs_ : mine_;
    const auto multiply = [=](size_t tensor, int64_t begin, int64_t end) {
      AddProductsOf(a + begin, b + begin, end - begin, &(*products)[tensor]);
    };
    ForEach(range, multiply, plan);
  }

  // Sums over the `block` places that hold pieces of the same two vectors. Both
  // sides of a pair add the same two numbers, so all get the same bits.
  void SumProducts(size_t block, AllProducts* products, P2PPlan* plan) {
    AllProducts* const incoming = NewProducts();
    const size_t bytes = products->size() * sizeof(AdasumProducts);
    for (size_t distance = 1; distance < block; distance *= 2) {
      const int partner = group_.ranks[group_.me ^ distance];
      plan->Receive(kProductLane, partner, incoming->data(), bytes);
      plan->Send(kProductLane, partner, products->data(), bytes);
      plan->Wait(kProductLane);
      plan->Do([=] {
        AddAllProducts(incoming->data(), products->size(), products->data());
      });
    }
  }

  void Combine(const Range& range, bool mine_first, const AllProducts* products,
               P2PPlan* plan) {
    T* const to = mine_;
    const T* const a = mine_first ? mine_ : theirs_;
    const T* const b = mine_first ? theirs_ : mine_;
    const auto combine = [=](size_t tensor, int64_t begin, int64_t end) {
      CombineVectors((*products)[tensor], a + begin, b + begin, end - begin,
                     to + begin);
    };
    ForEach(range, combine, plan);
  }

  const RankGroup& group_;
  T* const mine_;
  T* const theirs_;
  std::vector<Range> tensors_;
  int64_t count_ = 0;
  size_t tree_ = 1;  // the largest power of two that is not above the size
  std::vector<std::unique_ptr<AllProducts>> products_;
};

template <typename T>
void WriteCombiner(const RankGroup& group, const SpanList& spans, char* mine,
                   char* theirs, P2PPlan* plan) {
  auto combiner = std::make_shared<Combiner<T>>(
      group, spans, reinterpret_cast<T*>(mine), reinterpret_cast<T*>(theirs));
  combiner->Write(plan);
  plan->Do([combiner] {});  // keeps it alive until here
}

}  // namespace

void ReduceAdasum(const RankGroup& group, const SpanList& spans,
                  const ReduceOptions& options, const Staging& staging,
                  P2PPlan* plan) {
  const int64_t count = spans.count();
  const size_t stored = SizeOf(options.dtype);
  const size_t element = SizeOf(AccumulatorOf(options.dtype));
  const size_t bytes = static_cast<size_t>(count) * element;
  char* const mine = staging(2 * bytes + 64);
  char* const theirs = mine + (bytes + 63) / 64 * 64;
  char* to = mine;
  for (const Span& span : spans.spans()) {
    const auto* const input = static_cast<const char*>(span.input);
    plan->Do(span.count, kBlock, [=](int64_t begin, int64_t block) {
      const auto at = static_cast<size_t>(begin);
      LoadAccumulator(options.dtype, to + at * element,
                      input == nullptr ? nullptr : input + at * stored, block,
                      options.prescale);
    });
    to += static_cast<size_t>(span.count) * element;
  }
  if (AccumulatorOf(options.dtype) == DType::kFloat64) {
    WriteCombiner<double>(group, spans, mine, theirs, plan);
  } else {
    WriteCombiner<float>(group, spans, mine, theirs, plan);
  }
  const char* from = mine;
  for (const Span& span : spans.spans()) {
    if (span.output != nullptr) {
      auto* const output = static_cast<char*>(span.output);
      plan->Do(span.count, kBlock, [=](int64_t begin, int64_t block) {
        const auto at = static_cast<size_t>(begin);
        StoreAccumulator(options.dtype, output + at * stored,
                         from + at * element, block, options.postscale);
      });
    }
    from += static_cast<size_t>(span.count) * element;
  }
}

}  // namespace tf_hvd
