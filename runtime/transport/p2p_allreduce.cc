#include "runtime/transport/p2p_allreduce.h"

#include <algorithm>

#include "kernels/buffer_ops.h"
#include "runtime/transport/p2p_gather.h"

namespace tf_hvd {
namespace {

// Elements whose partial results stay in the first level of the cache.
constexpr int64_t kBlock = 2048;
constexpr size_t kLargestElement = 16;

}  // namespace

ReduceOptions AverageAsSum(const ReduceOptions& options, size_t ranks) {
  ReduceOptions result = options;
  if (options.op == ReduceOp::kAverage) {
    result.op = ReduceOp::kSum;
    result.divisor = static_cast<double>(ranks);
  }
  return result;
}

Status ReduceInOrder(Flight* flight, const ReduceOptions& options,
                     const std::vector<const char*>& inputs, int64_t count,
                     char* output) {
  alignas(64) char partial[kBlock * kLargestElement];
  const size_t element_bytes = SizeOf(options.dtype);
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t block = std::min(kBlock, count - begin);
    const size_t offset = static_cast<size_t>(begin) * element_bytes;
    LoadAccumulator(options.dtype, partial, inputs[0] + offset, block,
                    options.prescale);
    for (size_t i = 1; i < inputs.size(); ++i) {
      Accumulate(options.dtype, options.op, partial, inputs[i] + offset, block,
                 options.prescale);
    }
    StoreAccumulator(options.dtype, output + offset, partial, block,
                     options.postscale, options.divisor);
    TF_HVD_RETURN_IF_ERROR(flight->Breathe());
  }
  return Status::Ok();
}

Status ReduceAlone(Flight* flight, const SpanList& spans,
                   const ReduceOptions& options) {
  const bool copy_only = options.prescale == 1.0 && options.postscale == 1.0 &&
                         options.divisor == 1.0;
  for (const Span& span : spans.spans()) {
    if (span.output == nullptr || span.count == 0) continue;
    const size_t bytes =
        static_cast<size_t>(span.count) * spans.element_bytes();
    auto* const output = static_cast<char*>(span.output);
    if (span.input == nullptr) {
      std::fill_n(output, bytes, '\0');
    } else if (copy_only) {
      TF_HVD_RETURN_IF_ERROR(flight->Copy(output, span.input, bytes));
    } else {
      const std::vector<const char*> inputs = {
          static_cast<const char*>(span.input)};
      TF_HVD_RETURN_IF_ERROR(
          ReduceInOrder(flight, options, inputs, span.count, output));
    }
  }
  return Status::Ok();
}

Status ReduceSmall(Flight* flight, const RankGroup& group,
                   const SpanList& spans, const ReduceOptions& options,
                   const Staging& staging) {
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
  spans.Pack(0, count, blocks);
  TF_HVD_RETURN_IF_ERROR(BruckGather(flight, group, offsets, blocks));
  TF_HVD_RETURN_IF_ERROR(
      ReduceInOrder(flight, options, inputs, count, reduced));
  spans.Unpack(0, count, reduced);
  return Status::Ok();
}

}  // namespace tf_hvd
