#include "runtime/agreement/agreement.h"

#include "runtime/request/mismatch.h"

namespace tf_hvd {
namespace {

// The lower-ranked of `best` and `candidate`, for candidates that differ from
// `request`.
void KeepLowestDiffering(const Submission& candidate,
                         const SharedRequest& request,
                         std::optional<Submission>* best) {
  if (candidate.request == request) return;
  if (!best->has_value() || candidate.rank < (*best)->rank) *best = candidate;
}

// The same for the steps.
void KeepLowestOffStep(const RankStep& candidate, int64_t step,
                       std::optional<RankStep>* best) {
  if (candidate.step == step) return;
  if (!best->has_value() || candidate.rank < (*best)->rank) *best = candidate;
}

std::string StepText(int64_t step) {
  return step < 0 ? "gives no step" : "is at step " + std::to_string(step);
}

std::string DescribeSteps(std::string_view name, const Vote& vote) {
  return "mismatch in " + std::string(NameOf(vote.first.request->kind)) + " '" +
         std::string(name) + "': rank " + std::to_string(vote.first.rank) +
         " " + StepText(vote.step) + ", rank " +
         std::to_string(vote.off_step->rank) + " " +
         StepText(vote.off_step->step) +
         "; all ranks must make the same steps. If one rank failed, repeated "
         "or skipped a step, make every rank do the same, or restart all from "
         "a checkpoint";
}

// What a rank that has joined can take part in, with zeros or without rows. A
// compiled step has room for as many rows of each rank.
bool RunsAfterJoin(const Request& request) {
  switch (request.kind) {
    case OpKind::kAllgather:
      return !request.compiled;
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
  KeepLowestDiffering(high.first, low.first.request, &merged.other);
  if (high.other.has_value()) {
    KeepLowestDiffering(*high.other, low.first.request, &merged.other);
  }
  merged.local_error = low.local_error;
  if (high.local_error.has_value() &&
      (!merged.local_error.has_value() ||
       high.local_error->rank < merged.local_error->rank)) {
    merged.local_error = high.local_error;
  }
  merged.step = low.step;
  merged.off_step = low.off_step;
  KeepLowestOffStep({high.first.rank, high.step}, low.step, &merged.off_step);
  if (high.off_step.has_value()) {
    KeepLowestOffStep(*high.off_step, low.step, &merged.off_step);
  }
  merged.joined = earlier.joined || later.joined;
  merged.last_rank = later.last_rank;
  return merged;
}

std::string Decide(std::string_view name, const Vote& vote) {
  if (vote.local_error.has_value()) {
    return "rank " + std::to_string(vote.local_error->rank) + ": " +
           vote.local_error->text;
  }
  if (vote.other.has_value()) {
    return DescribeMismatch(name, vote.first.rank, *vote.first.request,
                            vote.other->rank, *vote.other->request);
  }
  if (vote.off_step.has_value()) return DescribeSteps(name, vote);
  if (vote.joined && !RunsAfterJoin(*vote.first.request)) {
    return "'" + std::string(name) +
           "' cannot run: a rank has already joined, and only allreduce, "
           "allgather and barrier go on without it" +
           (vote.first.request->compiled ? ", allgather only in a step that "
                                           "XLA does not compile"
                                         : "");
  }
  return "";
}

}  // namespace tf_hvd
