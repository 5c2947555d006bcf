// The memory of an operation as seen by its backends. SpanList: consecutive
// spans treated as one long run of elements. RankRuns: the spans of an
// operation that has the same number of them for each rank; one rank's input or
// result is one run of elements. Also runs of bytes that are moved piece by
// piece.
//
// Pure except for the memory of the spans; refers to the vector it was made
// from.
#ifndef TF_HVD_RUNTIME_CONTRACT_SPANS_H_
#define TF_HVD_RUNTIME_CONTRACT_SPANS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

#include "compute/streaming.h"
#include "runtime/contract/operation.h"

namespace tf_hvd {

// Elements of a run.
struct Range {
  int64_t begin = 0;
  int64_t end = 0;  // after the last one

  int64_t count() const { return end - begin; }
};

class SpanList {
 public:
  SpanList(const std::vector<Span>& spans, size_t element_bytes);

  int64_t count() const { return ends_.empty() ? 0 : ends_.back(); }
  // Start of a span; for the index after the last span, the end.
  int64_t BeginOf(size_t span) const { return span == 0 ? 0 : ends_[span - 1]; }
  size_t element_bytes() const { return element_bytes_; }
  const std::vector<Span>& spans() const { return spans_; }

  // Address of the elements [begin, begin + count), if they are contiguous in
  // the memory of one span; otherwise null.
  const char* DirectInput(int64_t begin, int64_t count) const;
  char* DirectOutput(int64_t begin, int64_t count) const;

  // Calls visit(input, output, elements) for each contiguous part of the range,
  // in order; null for a missing input or output.
  using Visit = std::function<void(const char*, char*, int64_t)>;
  void ForEach(int64_t begin, int64_t count, const Visit& visit) const;

  // Copies inputs to `packed` (zeros for null inputs) and `packed` to outputs
  // (skipping null ones). Streaming stores end with a fence.
  void Pack(int64_t begin, int64_t count, char* packed,
            Stores stores = Stores::kOrdinary) const;
  void Unpack(int64_t begin, int64_t count, const char* packed) const;
  // Copies inputs to outputs.
  void Copy(int64_t begin, int64_t count) const;

 private:
  // Index of the span that contains the element.
  size_t Find(int64_t element) const;
  // Offset of the element in the span, in bytes; -1 if [begin, begin + count)
  // extends beyond the span.
  ptrdiff_t OffsetIn(size_t span, int64_t begin, int64_t count) const;
  const std::vector<Span>& spans_;
  const size_t element_bytes_;
  std::vector<int64_t> ends_;  // elements before the end of each span
};

// The start of each of consecutive parts, and the end of the last one.
template <typename Offset>
std::vector<Offset> OffsetsOf(const std::vector<int64_t>& sizes) {
  std::vector<Offset> offsets(sizes.size() + 1);
  for (size_t i = 0; i < sizes.size(); ++i) {
    offsets[i + 1] = offsets[i] + static_cast<Offset>(sizes[i]);
  }
  return offsets;
}

inline uint64_t PiecesOf(int64_t bytes, size_t piece_bytes) {
  return (static_cast<uint64_t>(bytes) + piece_bytes - 1) / piece_bytes;
}

// The bytes of the piece; 0 if there are no more.
inline size_t BytesIn(uint64_t piece, int64_t bytes, size_t piece_bytes) {
  const size_t begin = piece * piece_bytes;
  const auto end = static_cast<size_t>(bytes);
  return begin >= end ? 0 : std::min(piece_bytes, end - begin);
}

// Slices that several ranks process start at cache lines, counted in bytes or
// elements.
inline constexpr size_t kSliceAlign = 64;

// Start of the slice of the owner at `place`, out of `count` bytes or elements.
inline size_t CutAt(size_t count, size_t place, size_t owners) {
  if (place >= owners) return count;
  return count * place / owners / kSliceAlign * kSliceAlign;
}

// `to` and `from` may be null only if `bytes` is 0.
inline void CopyAt(void* to, size_t to_at, const void* from, size_t from_at,
                   size_t bytes) {
  if (bytes == 0) return;
  char* const target = static_cast<char*>(to) + to_at;
  const char* const source = static_cast<const char*>(from) + from_at;
  if (target != source) std::memmove(target, source, bytes);
}

class RankRuns {
 public:
  RankRuns(const std::vector<Span>& spans, size_t element_bytes, size_t ranks)
      : list_(spans, element_bytes),
        ranks_(ranks),
        each_(spans.size() / ranks) {}

  // All runs, concatenated.
  const SpanList& list() const { return list_; }
  // The number of spans for each rank.
  size_t each() const { return each_; }

  // Start of the run of the rank at that place of the set, in the list of all
  // runs.
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

  // Calls visit(place, input, output, offset, elements) for each contiguous
  // part of elements [begin, begin + count) of each rank's run. The runs are
  // packed consecutively, each padded to `count`; `offset` is the position
  // there.
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

#endif  // TF_HVD_RUNTIME_CONTRACT_SPANS_H_
