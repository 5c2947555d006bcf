#include "runtime/contract/spans.h"

#include <algorithm>
#include <cstring>

namespace tf_hvd {

SpanList::SpanList(const std::vector<Span>& spans, size_t element_bytes)
    : spans_(spans), element_bytes_(element_bytes) {
  ends_.reserve(spans.size());
  int64_t end = 0;
  for (const Span& span : spans) {
    end += span.count;
    ends_.push_back(end);
  }
}

size_t SpanList::Find(int64_t element) const {
  // The first span that ends after the element, skipping empty spans.
  return static_cast<size_t>(
      std::upper_bound(ends_.begin(), ends_.end(), element) - ends_.begin());
}

ptrdiff_t SpanList::OffsetIn(size_t span, int64_t begin, int64_t count) const {
  if (count <= 0 || begin + count > ends_[span]) return -1;
  const int64_t start = ends_[span] - spans_[span].count;
  return static_cast<ptrdiff_t>(begin - start) *
         static_cast<ptrdiff_t>(element_bytes_);
}

const char* SpanList::DirectInput(int64_t begin, int64_t count) const {
  const size_t span = Find(begin);
  if (span == spans_.size() || spans_[span].input == nullptr) return nullptr;
  const ptrdiff_t offset = OffsetIn(span, begin, count);
  if (offset < 0) return nullptr;
  return static_cast<const char*>(spans_[span].input) + offset;
}

char* SpanList::DirectOutput(int64_t begin, int64_t count) const {
  const size_t span = Find(begin);
  if (span == spans_.size() || spans_[span].output == nullptr) return nullptr;
  const ptrdiff_t offset = OffsetIn(span, begin, count);
  if (offset < 0) return nullptr;
  return static_cast<char*>(spans_[span].output) + offset;
}

void SpanList::ForEach(int64_t begin, int64_t count, const Visit& visit) const {
  const int64_t end = begin + count;
  for (size_t i = Find(begin); begin < end; ++i) {
    const int64_t until = std::min(end, ends_[i]);
    if (until == begin) continue;
    const Span& span = spans_[i];
    const ptrdiff_t offset = OffsetIn(i, begin, until - begin);
    const auto* const input = static_cast<const char*>(span.input);
    auto* const output = static_cast<char*>(span.output);
    visit(input == nullptr ? nullptr : input + offset,
          output == nullptr ? nullptr : output + offset, until - begin);
    begin = until;
  }
}

void SpanList::Pack(int64_t begin, int64_t count, char* packed,
                    Stores stores) const {
  ForEach(begin, count, [&](const char* input, char*, int64_t elements) {
    const size_t bytes = static_cast<size_t>(elements) * element_bytes_;
    if (input == nullptr) {
      std::memset(packed, 0, bytes);
    } else if (stores == Stores::kStreaming) {
      StreamBytes(packed, input, bytes);
    } else {
      std::memcpy(packed, input, bytes);
    }
    packed += bytes;
  });
  if (stores == Stores::kStreaming) FenceStreams();
}

void SpanList::Unpack(int64_t begin, int64_t count, const char* packed) const {
  ForEach(begin, count, [&](const char*, char* output, int64_t elements) {
    const size_t bytes = static_cast<size_t>(elements) * element_bytes_;
    if (output != nullptr) std::memcpy(output, packed, bytes);
    packed += bytes;
  });
}

void SpanList::Copy(int64_t begin, int64_t count) const {
  ForEach(begin, count, [&](const char* input, char* output, int64_t elements) {
    if (output == nullptr) return;
    CopyAt(output, 0, input, 0, static_cast<size_t>(elements) * element_bytes_);
  });
}

}  // namespace tf_hvd
