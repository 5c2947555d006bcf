#include "runtime/agreement.h"

namespace tf_hvd {
namespace {

// The lower-ranked of `best` and `candidate`, for candidates that differ from
// `record`.
void KeepLowestDiffering(const Witness& candidate, const std::string& record,
                         std::optional<Witness>* best) {
  if (candidate.record == record) return;
  if (!best->has_value() || candidate.rank < (*best)->rank) *best = candidate;
}

// What a rank that has joined can take part in, with zeros or without rows.
bool RunsAfterJoin(std::string_view record) {
  Record decoded;
  if (!DecodeRecord(record, &decoded).ok()) return false;
  switch (decoded.kind) {
    case OpKind::kBroadcast:
    case OpKind::kAlltoall:
    case OpKind::kReducescatter:
      return false;
    default:
      return true;
  }
}

}  // namespace

Vote Merge(const Vote& earlier, const Vote& later) {
  const bool earlier_leads = earlier.first.rank <= later.first.rank;
  const Vote& low = earlier_leads ? earlier : later;
  const Vote& high = earlier_leads ? later : earlier;

  Vote merged;
  merged.first = low.first;
  merged.other = low.other;
  KeepLowestDiffering(high.first, low.first.record, &merged.other);
  if (high.other.has_value()) {
    KeepLowestDiffering(*high.other, low.first.record, &merged.other);
  }
  merged.refusal = low.refusal;
  if (high.refusal.has_value() && (!merged.refusal.has_value() ||
                                   high.refusal->rank < merged.refusal->rank)) {
    merged.refusal = high.refusal;
  }
  merged.joined = earlier.joined || later.joined;
  merged.last = later.last;
  return merged;
}

std::string Verdict(std::string_view name, const Vote& vote) {
  if (vote.refusal.has_value()) {
    return "rank " + std::to_string(vote.refusal->rank) + ": " +
           vote.refusal->text;
  }
  if (vote.other.has_value()) {
    return DescribeMismatch(name, vote.first.rank, vote.first.record,
                            vote.other->rank, vote.other->record);
  }
  if (vote.joined && !RunsAfterJoin(vote.first.record)) {
    return "'" + std::string(name) +
           "' cannot run: a rank has already joined, and only allreduce, "
           "allgather and barrier go on without it";
  }
  return "";
}

}  // namespace tf_hvd
