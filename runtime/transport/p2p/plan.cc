#include "runtime/transport/p2p/plan.h"

#include <algorithm>

#include "compute/buffer_ops.h"
#include "runtime/transport/p2p/adasum.h"
#include "runtime/transport/p2p/allreduce.h"
#include "runtime/transport/p2p/gather.h"
#include "runtime/transport/p2p/scatter.h"

namespace tf_hvd {
namespace {

// Up to these sizes the number of messages costs more than their length: for
// the total of all ranks' data, or for one rank's.
constexpr size_t kSmallTogether = size_t{64} << 10;
constexpr size_t kSmallEach = size_t{1} << 10;

bool IsSmall(size_t bytes, size_t ranks) {
  return bytes <= std::max(kSmallTogether / ranks, kSmallEach);
}

void PlanAllreduce(const ReduceOptions& options, const RankGroup& group,
                   const SpanList& spans, const Staging& staging,
                   P2PPlan* plan) {
  if (spans.count() == 0) return;
  if (group.size() == 1) return ReduceAlone(spans, options, plan);
  if (options.op == ReduceOp::kAdasum) {
    return ReduceAdasum(group, spans, options, staging, plan);
  }
  const size_t bytes =
      static_cast<size_t>(spans.count()) * spans.element_bytes();
  const auto reduce = IsSmall(bytes, group.size()) ? ReduceSmall : ReduceLarge;
  reduce(group, spans, options, staging, plan);
}

void PlanAllgather(const RankGroup& group, const RankRuns& runs,
                   const Staging& staging, P2PPlan* plan) {
  const auto bytes = static_cast<size_t>(runs.list().count());
  const bool small = bytes <= kSmallTogether && group.size() > 1;
  const auto gather = small ? ShortGather : DirectGather;
  gather(group, runs, staging, plan);
}

void PlanReducescatter(const ReduceOptions& options, const RankGroup& group,
                       const RankRuns& runs, const Staging& staging,
                       P2PPlan* plan) {
  if (group.size() == 1) return ReduceAlone(runs.list(), options, plan);
  ReduceScatterPieces(group, runs, options, staging, plan);
}

}  // namespace

void PlanByMessages(const OperationSpec& spec, const RankGroup& group,
                    const RankRuns& runs, const Staging& staging,
                    P2PPlan* plan) {
  const auto sums = [&] { return AverageAsSum(spec.reduce, group.size()); };
  switch (spec.kind) {
    case OpKind::kAllreduce:
      return PlanAllreduce(sums(), group, runs.list(), staging, plan);
    case OpKind::kBroadcast:
      return BroadcastFrom(group, spec.root, runs.list(), spec.of_pieces,
                           staging, plan);
    case OpKind::kAllgather:
      return PlanAllgather(group, runs, staging, plan);
    case OpKind::kAlltoall:
      return ExchangeAll(group, static_cast<const char*>(spec.input),
                         OffsetsOf<size_t>(spec.send),
                         static_cast<char*>(spec.output),
                         OffsetsOf<size_t>(spec.receive), plan);
    default:
      return PlanReducescatter(sums(), group, runs, staging, plan);
  }
}

}  // namespace tf_hvd
