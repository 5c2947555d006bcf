// RankRuns: the spans of an operation that has as many of them for each rank:
// what one rank gives, or gets, is one run of elements.
//
// Pure; refers to the vector of spans it was made of.
#ifndef TF_HVD_RUNTIME_TRANSPORT_RANK_RUNS_H_
#define TF_HVD_RUNTIME_TRANSPORT_RANK_RUNS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/transport/operation.h"
#include "runtime/transport/span_list.h"

namespace tf_hvd {

class RankRuns {
 public:
  RankRuns(const std::vector<Span>& spans, size_t element_bytes, size_t ranks)
      : list_(spans, element_bytes),
        ranks_(ranks),
        each_(spans.size() / ranks) {}

  // All runs, one behind the other.
  const SpanList& list() const { return list_; }
  size_t ranks() const { return ranks_; }
  // The spans of one rank.
  size_t each() const { return each_; }

  // Of the rank at that place of the set: where its run begins among all.
  int64_t BeginOf(size_t place) const { return list_.BeginOf(place * each_); }
  int64_t CountOf(size_t place) const {
    return BeginOf(place + 1) - BeginOf(place);
  }
  int64_t Longest() const {
    int64_t longest = 0;
    for (size_t place = 0; place < ranks_; ++place) {
      longest = std::max(longest, CountOf(place));
    }
    return longest;
  }

  // Calls visit(place, input, output, offset, elements) for what lies together
  // of elements [begin, begin + count) of each rank's run. The runs are laid
  // out one behind the other, each padded to `count`: `offset` is where there.
  template <typename Visit>
  void ForEachInPiece(int64_t begin, int64_t count, const Visit& visit) const {
    for (size_t place = 0; place < ranks_; ++place) {
      const int64_t here =
          std::clamp<int64_t>(CountOf(place) - begin, 0, count);
      int64_t offset = count * static_cast<int64_t>(place);
      list_.ForEach(BeginOf(place) + begin, here,
                    [&](const char* input, char* output, int64_t elements) {
                      visit(place, input, output, offset, elements);
                      offset += elements;
                    });
    }
  }

 private:
  const SpanList list_;
  const size_t ranks_;
  const size_t each_;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_RANK_RUNS_H_
