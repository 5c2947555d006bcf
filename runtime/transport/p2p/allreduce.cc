#include "runtime/transport/p2p/allreduce.h"

#include <algorithm>
#include <utility>

#include "compute/buffer_ops.h"
#include "runtime/transport/p2p/gather.h"

namespace tf_hvd {
namespace {

// Number of elements reduced at once.
constexpr int64_t kBlock = 2048;
constexpr int64_t kZeroBytes = 256 * 1024;

}  // namespace

void ReduceInOrder(const ReduceOptions& options,
                   std::vector<const char*> inputs, int64_t count, char* output,
                   P2PPlan* plan) {
  plan->Do(count, kBlock,
           [=, inputs = std::move(inputs)](int64_t begin, int64_t block) {
             const size_t offset =
                 static_cast<size_t>(begin) * SizeOf(options.dtype);
             std::vector<const void*> at;
             for (const char* input : inputs) at.push_back(input + offset);
             ReduceInputs(options, at, block, output + offset);
           });
}

void ReduceAlone(const SpanList& spans, const ReduceOptions& options,
                 P2PPlan* plan) {
  const bool copy_only = options.prescale == 1.0 && options.postscale == 1.0 &&
                         options.divisor == 1.0;
  for (const Span& span : spans.spans()) {
    if (span.output == nullptr || span.count == 0) continue;
    const size_t bytes =
        static_cast<size_t>(span.count) * spans.element_bytes();
    auto* const output = static_cast<char*>(span.output);
    if (span.input == nullptr) {
      plan->Do(static_cast<int64_t>(bytes), kZeroBytes,
               [=](int64_t begin, int64_t count) {
                 std::fill_n(output + begin, count, '\0');
               });
    } else if (copy_only) {
      plan->Copy(output, span.input, bytes);
    } else {
      ReduceInOrder(options, {static_cast<const char*>(span.input)}, span.count,
                    output, plan);
    }
  }
}

const char* InputOf(const SpanList& spans, int64_t begin, int64_t count,
                    char* packed, P2PPlan* plan) {
  const char* const direct = spans.DirectInput(begin, count);
  if (direct != nullptr || count == 0) return direct;
  plan->Do([=, &spans] { spans.Pack(begin, count, packed); });
  return packed;
}

void ReduceSmall(const RankGroup& group, const SpanList& spans,
                 const ReduceOptions& options, const Staging& staging,
                 P2PPlan* plan) {
  const int64_t count = spans.count();
  const size_t bytes = static_cast<size_t>(count) * spans.element_bytes();
  char* const blocks = staging((group.size() + 1) * bytes);
  char* const reduced = blocks + group.size() * bytes;
  std::vector<size_t> offsets(group.size() + 1);
  std::vector<const char*> inputs(group.size());
  for (size_t block = 0; block < group.size(); ++block) {
    offsets[block + 1] = offsets[block] + bytes;
    inputs[group.Next(block)] = blocks + offsets[block];
  }
  plan->Do([=, &spans] { spans.Pack(0, count, blocks); });
  BruckGather(group, offsets, blocks, plan);
  ReduceInOrder(options, std::move(inputs), count, reduced, plan);
  plan->Do([=, &spans] { spans.Unpack(0, count, reduced); });
}

}  // namespace tf_hvd
