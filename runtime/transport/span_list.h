// SpanList: spans one after the other, seen as one long run of elements.
//
// Pure but for the memory of the spans; refers to the vector it was made of.
#ifndef TF_HVD_RUNTIME_TRANSPORT_SPAN_LIST_H_
#define TF_HVD_RUNTIME_TRANSPORT_SPAN_LIST_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "runtime/transport/operation.h"

namespace tf_hvd {

class SpanList {
 public:
  SpanList(const std::vector<Span>& spans, size_t element_bytes);

  int64_t count() const { return ends_.empty() ? 0 : ends_.back(); }
  // Where a span begins; behind the last one, the end.
  int64_t BeginOf(size_t span) const { return span == 0 ? 0 : ends_[span - 1]; }
  size_t element_bytes() const { return element_bytes_; }
  const std::vector<Span>& spans() const { return spans_; }

  // Where the elements [begin, begin + count) are read or written, if they lie
  // together in the memory of one span; otherwise null.
  const char* DirectInput(int64_t begin, int64_t count) const;
  char* DirectOutput(int64_t begin, int64_t count) const;

  // Calls visit(input, output, elements) for what lies together of the range,
  // in order; null for a span without.
  using Visit = std::function<void(const char*, char*, int64_t)>;
  void ForEach(int64_t begin, int64_t count, const Visit& visit) const;

  // Copies inputs to `packed` (zeros for null ones) and `packed` to outputs
  // (nothing to null ones).
  void Pack(int64_t begin, int64_t count, char* packed) const;
  void Unpack(int64_t begin, int64_t count, const char* packed) const;
  // Copies inputs to outputs.
  void Copy(int64_t begin, int64_t count) const;

 private:
  // Index of the span that holds the element.
  size_t Find(int64_t element) const;
  // Offset of the element in the span, in bytes; -1 if [begin, begin + count)
  // goes beyond the span.
  ptrdiff_t OffsetIn(size_t span, int64_t begin, int64_t count) const;
  const std::vector<Span>& spans_;
  const size_t element_bytes_;
  std::vector<int64_t> ends_;  // elements before the end of each span
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_SPAN_LIST_H_
