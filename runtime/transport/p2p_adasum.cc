#include "runtime/transport/p2p_adasum.h"

#include <algorithm>
#include <array>
#include <vector>

#include "kernels/buffer_ops.h"

namespace tf_hvd {
namespace {

// Elements between two breaths.
constexpr int64_t kBlock = 16384;
constexpr size_t kVectorLane = 0;
constexpr size_t kProductLane = 1;

struct Range {
  int64_t begin;
  int64_t end;

  int64_t count() const { return end - begin; }
};

// a.b, a.a and b.b of one span.
using Products = std::array<double, 3>;

// One rank's part, on the accumulators of all spans one after the other.
template <typename T>
class Combiner {
 public:
  // `mine` and `theirs` hold as many elements as the spans.
  Combiner(Flight* flight, const RankGroup& group, const SpanList& spans,
           T* mine, T* theirs)
      : flight_(flight), group_(group), mine_(mine), theirs_(theirs) {
    int64_t end = 0;
    for (const Span& span : spans.spans()) {
      tensors_.push_back({end, end + span.count});
      end += span.count;
    }
    count_ = end;
    while (tree_ * 2 <= group.size()) tree_ *= 2;
  }

  Status Run() {
    const Range all{0, count_};
    // Places from tree_ on lend their vector to a place of the tree.
    if (group_.me >= tree_) {
      const size_t host = group_.me - tree_;
      TF_HVD_RETURN_IF_ERROR(Send(host, all));
      TF_HVD_RETURN_IF_ERROR(flight_->Wait(kVectorLane));
      TF_HVD_RETURN_IF_ERROR(Receive(host, mine_, all));
      return flight_->Wait(kVectorLane);
    }
    const bool hosts = group_.me + tree_ < group_.size();
    if (hosts) {
      TF_HVD_RETURN_IF_ERROR(Receive(group_.me + tree_, theirs_, all));
      TF_HVD_RETURN_IF_ERROR(flight_->Wait(kVectorLane));
      std::vector<Products> products(tensors_.size());
      TF_HVD_RETURN_IF_ERROR(Multiply(all, /*mine_first=*/true, &products));
      TF_HVD_RETURN_IF_ERROR(Combine(all, /*mine_first=*/true, products));
    }
    TF_HVD_RETURN_IF_ERROR(Halve());
    if (hosts) {
      TF_HVD_RETURN_IF_ERROR(Send(group_.me + tree_, all));
    }
    return flight_->Wait(kVectorLane);
  }

 private:
  // Down: at each distance the partner gets one half of what I hold and gives
  // me its share of the other. Up: the halves come back.
  Status Halve() {
    std::vector<Range> held = {{0, count_}};
    for (size_t distance = 1; distance < tree_; distance *= 2) {
      const size_t partner = group_.me ^ distance;
      const bool first = (group_.me & distance) == 0;
      const Range range = held.back();
      const int64_t middle = range.begin + range.count() / 2;
      const Range low{range.begin, middle};
      const Range high{middle, range.end};
      const Range keep = first ? low : high;
      TF_HVD_RETURN_IF_ERROR(Receive(partner, theirs_, keep));
      TF_HVD_RETURN_IF_ERROR(Send(partner, first ? high : low));
      TF_HVD_RETURN_IF_ERROR(flight_->Wait(kVectorLane));
      std::vector<Products> products(tensors_.size());
      TF_HVD_RETURN_IF_ERROR(Multiply(keep, first, &products));
      TF_HVD_RETURN_IF_ERROR(SumProducts(distance * 2, &products));
      TF_HVD_RETURN_IF_ERROR(Combine(keep, first, products));
      held.push_back(keep);
    }
    for (size_t distance = tree_ / 2; distance > 0; distance /= 2) {
      const Range mine = held.back();
      held.pop_back();
      const Range whole = held.back();
      const Range other = mine.begin == whole.begin
                              ? Range{mine.end, whole.end}
                              : Range{whole.begin, mine.begin};
      TF_HVD_RETURN_IF_ERROR(Receive(group_.me ^ distance, mine_, other));
      TF_HVD_RETURN_IF_ERROR(Send(group_.me ^ distance, mine));
      TF_HVD_RETURN_IF_ERROR(flight_->Wait(kVectorLane));
    }
    return Status::Ok();
  }

  Status Send(size_t place, const Range& range) {
    return flight_->Send(kVectorLane, group_.ranks[place], mine_ + range.begin,
                         static_cast<size_t>(range.count()) * sizeof(T));
  }
  Status Receive(size_t place, T* to, const Range& range) {
    return flight_->Receive(kVectorLane, group_.ranks[place], to + range.begin,
                            static_cast<size_t>(range.count()) * sizeof(T));
  }

  // Calls visit(tensor, begin, end) for pieces of a range, none of which goes
  // beyond a tensor.
  template <typename Visit>
  Status ForEach(const Range& range, const Visit& visit) {
    for (size_t t = 0; t < tensors_.size(); ++t) {
      const int64_t end = std::min(range.end, tensors_[t].end);
      for (int64_t begin = std::max(range.begin, tensors_[t].begin);
           begin < end; begin += kBlock) {
        visit(t, begin, std::min(end, begin + kBlock));
        TF_HVD_RETURN_IF_ERROR(flight_->Breathe());
      }
    }
    return Status::Ok();
  }

  Status Multiply(const Range& range, bool mine_first,
                  std::vector<Products>* products) {
    const T* const a = mine_first ? mine_ : theirs_;
    const T* const b = mine_first ? theirs_ : mine_;
    return ForEach(range, [&](size_t tensor, int64_t begin, int64_t end) {
      Products sums = {};
      for (int64_t i = begin; i < end; ++i) {
        const auto x = static_cast<double>(a[i]);
        const auto y = static_cast<double>(b[i]);
        sums[0] += x * y;
        sums[1] += x * x;
        sums[2] += y * y;
      }
      for (size_t k = 0; k < sums.size(); ++k) {
        (*products)[tensor][k] += sums[k];
      }
    });
  }

  // Sums over the `block` places that hold pieces of the same two vectors. Both
  // sides of a pair add the same two numbers: all get the same bits.
  Status SumProducts(size_t block, std::vector<Products>* products) {
    std::vector<Products> incoming(products->size());
    const size_t bytes = products->size() * sizeof(Products);
    for (size_t distance = 1; distance < block; distance *= 2) {
      const int partner = group_.ranks[group_.me ^ distance];
      TF_HVD_RETURN_IF_ERROR(
          flight_->Receive(kProductLane, partner, incoming.data(), bytes));
      TF_HVD_RETURN_IF_ERROR(
          flight_->Send(kProductLane, partner, products->data(), bytes));
      TF_HVD_RETURN_IF_ERROR(flight_->Wait(kProductLane));
      for (size_t t = 0; t < products->size(); ++t) {
        for (size_t k = 0; k < 3; ++k) (*products)[t][k] += incoming[t][k];
      }
    }
    return Status::Ok();
  }

  Status Combine(const Range& range, bool mine_first,
                 const std::vector<Products>& products) {
    const T* const a = mine_first ? mine_ : theirs_;
    const T* const b = mine_first ? theirs_ : mine_;
    return ForEach(range, [&](size_t tensor, int64_t begin, int64_t end) {
      const Products& p = products[tensor];
      const double of_a = p[1] > 0.0 ? 1.0 - p[0] / (2.0 * p[1]) : 1.0;
      const double of_b = p[2] > 0.0 ? 1.0 - p[0] / (2.0 * p[2]) : 1.0;
      for (int64_t i = begin; i < end; ++i) {
        mine_[i] = static_cast<T>(of_a * static_cast<double>(a[i]) +
                                  of_b * static_cast<double>(b[i]));
      }
    });
  }

  Flight* const flight_;
  const RankGroup& group_;
  T* const mine_;
  T* const theirs_;
  std::vector<Range> tensors_;
  int64_t count_ = 0;
  size_t tree_ = 1;  // the largest power of two that is not above the size
};

}  // namespace

Status ReduceAdasum(Flight* flight, const RankGroup& group,
                    const SpanList& spans, const ReduceOptions& options,
                    const Staging& staging) {
  const int64_t count = spans.count();
  const size_t element = SizeOf(AccumulatorOf(options.dtype));
  const size_t bytes = static_cast<size_t>(count) * element;
  char* const mine = staging(2 * bytes + 64);
  char* const theirs = mine + (bytes + 63) / 64 * 64;
  char* to = mine;
  for (const Span& span : spans.spans()) {
    LoadAccumulator(options.dtype, to, span.input, span.count,
                    options.prescale);
    to += static_cast<size_t>(span.count) * element;
    TF_HVD_RETURN_IF_ERROR(flight->Breathe());
  }
  const Status status =
      AccumulatorOf(options.dtype) == DType::kFloat64
          ? Combiner<double>(flight, group, spans,
                             reinterpret_cast<double*>(mine),
                             reinterpret_cast<double*>(theirs))
                .Run()
          : Combiner<float>(flight, group, spans,
                            reinterpret_cast<float*>(mine),
                            reinterpret_cast<float*>(theirs))
                .Run();
  TF_HVD_RETURN_IF_ERROR(status);
  const char* from = mine;
  for (const Span& span : spans.spans()) {
    if (span.output != nullptr) {
      StoreAccumulator(options.dtype, span.output, from, span.count,
                       options.postscale);
    }
    from += static_cast<size_t>(span.count) * element;
    TF_HVD_RETURN_IF_ERROR(flight->Breathe());
  }
  return Status::Ok();
}

}  // namespace tf_hvd
