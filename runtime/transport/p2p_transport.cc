#include "runtime/transport/p2p_transport.h"

#include <algorithm>
#include <string>

#include "kernels/buffer_ops.h"
#include "runtime/transport/p2p_adasum.h"
#include "runtime/transport/p2p_allreduce.h"
#include "runtime/transport/p2p_gather.h"
#include "runtime/transport/p2p_scatter.h"
#include "runtime/transport/span_list.h"

namespace tf_hvd {
namespace {

// Up to these sizes the number of messages counts more than their length: of
// all ranks' data together, or of one rank's.
constexpr size_t kSmallTogether = size_t{64} << 10;
constexpr size_t kSmallEach = size_t{1} << 10;

bool IsSmall(size_t bytes, size_t ranks) {
  return bytes <= std::max(kSmallTogether / ranks, kSmallEach);
}

Status CheckReducible(const ReduceOptions& options) {
  if (IsReducible(options.dtype, options.op)) return Status::Ok();
  return Internal(std::string("bug in tf_hvd: no reduction ") +
                  NameOf(options.op) + " of " + NameOf(options.dtype));
}

// Where each of consecutive parts begins, and where the last one ends.
template <typename Offset>
std::vector<Offset> OffsetsOf(const std::vector<int64_t>& sizes) {
  std::vector<Offset> offsets(sizes.size() + 1);
  for (size_t i = 0; i < sizes.size(); ++i) {
    offsets[i + 1] = offsets[i] + static_cast<Offset>(sizes[i]);
  }
  return offsets;
}

}  // namespace

P2PTransport::P2PTransport(Messenger* messenger, int rank, bool yield_at_once,
                           size_t max_message_bytes)
    : messenger_(messenger),
      rank_(rank),
      options_{yield_at_once, max_message_bytes, &progress_} {}

char* P2PTransport::Stage(size_t bytes) {
  if (bytes > staging_bytes_) {
    staging_.reset();
    staging_.reset(new char[bytes]);
    staging_bytes_ = bytes;
  }
  return staging_.get();
}

Status P2PTransport::Fly(const std::vector<int>& ranks, const Pump& pump,
                         const Body& body) {
  const auto found = std::lower_bound(ranks.begin(), ranks.end(), rank_);
  if (found == ranks.end() || *found != rank_) {
    return Internal("bug in tf_hvd: rank " + std::to_string(rank_) +
                    " takes part in an operation of a set it is not in");
  }
  const RankGroup group{ranks, static_cast<size_t>(found - ranks.begin())};
  progress_.awaited = -1;
  Flight flight(messenger_, pump, options_);
  const Status status = body(&flight, group);
  if (!status.ok() && !flight.Abandon()) {
    memory_in_use_ = true;
    // A late message may still be written there: it is never given back.
    (void)staging_.release();
    staging_bytes_ = 0;
  }
  return status;
}

Status P2PTransport::Allreduce(const std::vector<int>& ranks,
                               const std::vector<Span>& spans,
                               const ReduceOptions& options, const Pump& pump) {
  const bool adasum = options.op == ReduceOp::kAdasum;
  if (!adasum || !IsFloating(options.dtype)) {
    TF_HVD_RETURN_IF_ERROR(CheckReducible(options));
  }
  const SpanList list(spans, SizeOf(options.dtype));
  const ReduceOptions sums = AverageAsSum(options, ranks.size());
  const Staging staging = [this](size_t bytes) { return Stage(bytes); };
  return Fly(ranks, pump, [&](Flight* flight, const RankGroup& group) {
    if (list.count() == 0) return Status::Ok();
    if (group.size() == 1) return ReduceAlone(flight, list, sums);
    if (adasum) return ReduceAdasum(flight, group, list, sums, staging);
    const size_t bytes =
        static_cast<size_t>(list.count()) * list.element_bytes();
    const auto reduce =
        IsSmall(bytes, group.size()) ? ReduceSmall : ReduceLarge;
    return reduce(flight, group, list, sums, staging);
  });
}

Status P2PTransport::Allgather(const std::vector<int>& ranks, const void* mine,
                               const std::vector<int64_t>& bytes, void* output,
                               const Pump& pump) {
  return Fly(ranks, pump, [&](Flight* flight, const RankGroup& group) {
    const size_t size = group.size();
    const auto offsets = OffsetsOf<size_t>(bytes);
    auto* const result = static_cast<char*>(output);
    if (offsets[size] > kSmallTogether || size == 1) {
      return DirectGather(flight, group, mine, offsets, result);
    }
    // In Bruck's order each rank's own block comes first.
    std::vector<size_t> turned(size + 1);
    for (size_t i = 0; i < size; ++i) {
      turned[i + 1] = turned[i] + static_cast<size_t>(bytes[group.Next(i)]);
    }
    char* const blocks = Stage(offsets[size]);
    std::copy_n(static_cast<const char*>(mine), turned[1], blocks);
    TF_HVD_RETURN_IF_ERROR(BruckGather(flight, group, turned, blocks));
    for (size_t i = 0; i < size; ++i) {
      std::copy(blocks + turned[i], blocks + turned[i + 1],
                result + offsets[group.Next(i)]);
    }
    return Status::Ok();
  });
}

Status P2PTransport::Broadcast(const std::vector<int>& ranks, int root,
                               void* data, int64_t bytes, const Pump& pump) {
  return Fly(ranks, pump, [&](Flight* flight, const RankGroup& group) {
    const auto found = std::lower_bound(ranks.begin(), ranks.end(), root);
    if (found == ranks.end() || *found != root) {
      return Internal("bug in tf_hvd: broadcast from rank " +
                      std::to_string(root) + ", which is not in the set");
    }
    return SpreadFrom(flight, group, static_cast<size_t>(found - ranks.begin()),
                      static_cast<char*>(data), static_cast<size_t>(bytes));
  });
}

Status P2PTransport::Reducescatter(const std::vector<int>& ranks,
                                   const void* input,
                                   const std::vector<int64_t>& counts,
                                   void* output, const ReduceOptions& options,
                                   const Pump& pump) {
  TF_HVD_RETURN_IF_ERROR(CheckReducible(options));
  const ReduceOptions sums = AverageAsSum(options, ranks.size());
  const Staging staging = [this](size_t bytes) { return Stage(bytes); };
  return Fly(ranks, pump, [&](Flight* flight, const RankGroup& group) {
    if (group.size() == 1) {
      const std::vector<Span> spans = {{input, output, counts[0]}};
      return ReduceAlone(flight, SpanList(spans, SizeOf(options.dtype)), sums);
    }
    const auto offsets = OffsetsOf<int64_t>(counts);
    return ReduceScatterPieces(flight, group, static_cast<const char*>(input),
                               offsets, static_cast<char*>(output), sums,
                               staging);
  });
}

Status P2PTransport::Alltoall(const std::vector<int>& ranks, const void* input,
                              const std::vector<int64_t>& send_bytes,
                              void* output,
                              const std::vector<int64_t>& receive_bytes,
                              const Pump& pump) {
  return Fly(ranks, pump, [&](Flight* flight, const RankGroup& group) {
    return ExchangeAll(flight, group, static_cast<const char*>(input),
                       OffsetsOf<size_t>(send_bytes),
                       static_cast<char*>(output),
                       OffsetsOf<size_t>(receive_bytes));
  });
}

}  // namespace tf_hvd
