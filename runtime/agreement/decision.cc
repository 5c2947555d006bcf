#include "runtime/agreement/decision.h"

#include <algorithm>

#include "runtime/request/mismatch.h"
#include "runtime/request/sources.h"

namespace tf_hvd {
namespace {

// The lower-ranked of `best` and `candidate`.
template <typename OfRank>
void KeepLowest(const OfRank& candidate, std::optional<OfRank>* best) {
  if (!best->has_value() || candidate.rank < (*best)->rank) *best = candidate;
}

// The same, for candidates that differ from `request`.
void KeepLowestDiffering(const Submission& candidate,
                         const SharedRequest& request,
                         std::optional<Submission>* best) {
  if (candidate.request != request) KeepLowest(candidate, best);
}

// The same for steps.
void KeepLowestOffStep(const RankStep& candidate, int64_t step,
                       std::optional<RankStep>* best) {
  if (candidate.step != step) KeepLowest(candidate, best);
}

// The same for sources, among the ranks that know them.
void MergeSources(const Vote& a, const Vote& b, Vote* merged) {
  for (const auto* each : {&a.sources, &b.sources}) {
    if (each->has_value()) KeepLowest(**each, &merged->sources);
  }
  for (const auto* each :
       {&a.sources, &a.off_sources, &b.sources, &b.off_sources}) {
    if (each->has_value() && (*each)->digest != merged->sources->digest) {
      KeepLowest(**each, &merged->off_sources);
    }
  }
}

void AddTold(const std::vector<ToldSources>& more,
             std::vector<ToldSources>* told) {
  for (const ToldSources& one : more) {
    const auto same = [&one](const ToldSources& known) {
      return known.digest == one.digest;
    };
    if (std::none_of(told->begin(), told->end(), same)) told->push_back(one);
  }
}

std::string StepText(int64_t step) {
  return step < 0 ? "gives no step" : "is at step " + std::to_string(step);
}

std::string MismatchIn(std::string_view name, const Vote& vote, int32_t rank) {
  return "mismatch in " + std::string(NameOf(vote.first.request->kind)) + " '" +
         std::string(name) + "': rank " + std::to_string(rank) + " ";
}

std::string DescribeSteps(std::string_view name, const Vote& vote) {
  return MismatchIn(name, vote, vote.first.rank) + StepText(vote.step) +
         ", rank " + std::to_string(vote.off_step->rank) + " " +
         StepText(vote.off_step->step) +
         "; all ranks must run the same steps. If one rank failed, repeated "
         "or skipped a step, make every rank do the same, or restart all ranks "
         "from a checkpoint";
}

std::string DescribeOtherSources(std::string_view name, const Vote& vote,
                                 int32_t set, const SourceNames& names) {
  const auto [first, second] =
      DescribeSources(names.Find(set, vote.sources->digest),
                      names.Find(set, vote.off_sources->digest));
  return MismatchIn(name, vote, vote.sources->rank) +
         "reduces the gradient of " + first + ", rank " +
         std::to_string(vote.off_sources->rank) + " that of " + second +
         "; all ranks must reduce the gradients of the same variables, in the "
         "same order. If each rank trains a different part of a model, compute "
         "the gradients of all variables on every rank "
         "(unconnected_gradients=tf.UnconnectedGradients.ZERO). If several "
         "threads train, start their steps in the same order on all ranks. If "
         "a model was recreated, broadcast its variables on all ranks";
}

// The requests that a rank which has joined can take part in, with zeros or
// without rows. A compiled step expects the same number of rows from each rank.
bool RunsAfterJoin(const Request& request) {
  return Has(request.kind, kRunsAfterJoin) &&
         !(request.compiled && RowsDiffer(request.kind));
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
  if (high.local_error.has_value()) {
    KeepLowest(*high.local_error, &merged.local_error);
  }
  merged.step = low.step;
  merged.off_step = low.off_step;
  KeepLowestOffStep({high.first.rank, high.step}, low.step, &merged.off_step);
  if (high.off_step.has_value()) {
    KeepLowestOffStep(*high.off_step, low.step, &merged.off_step);
  }
  MergeSources(low, high, &merged);
  merged.told = earlier.told;
  AddTold(later.told, &merged.told);
  merged.joined = earlier.joined || later.joined;
  merged.last_rank = later.last_rank;
  return merged;
}

bool SourceNames::Add(int32_t set, int64_t digest, std::string bytes) {
  constexpr size_t kMost = 4096;
  const Which which(set, digest);
  if (names_.count(which) > 0) return false;
  if (names_.size() == kMost) {
    names_.erase(in_turn_.front());
    in_turn_.pop_front();
  }
  in_turn_.push_back(which);
  names_[which] = std::move(bytes);
  return true;
}

std::string_view SourceNames::Find(int32_t set, int64_t digest) const {
  const auto it = names_.find({set, digest});
  return it == names_.end() ? std::string_view() : it->second;
}

std::string Decide(std::string_view name, const Vote& vote, int32_t set,
                   const SourceNames& names) {
  if (vote.local_error.has_value()) {
    return "rank " + std::to_string(vote.local_error->rank) + ": " +
           vote.local_error->text;
  }
  if (vote.other.has_value()) {
    return DescribeMismatch(name, vote.first.rank, *vote.first.request,
                            vote.other->rank, *vote.other->request);
  }
  if (vote.off_step.has_value()) return DescribeSteps(name, vote);
  if (vote.off_sources.has_value()) {
    return DescribeOtherSources(name, vote, set, names);
  }
  if (vote.joined && !RunsAfterJoin(*vote.first.request)) {
    return "'" + std::string(name) +
           "' cannot run: a rank has already joined, and only allreduce, "
           "allgather and barrier can run without it" +
           (vote.first.request->compiled ? ", allgather only in a step that "
                                           "XLA does not compile"
                                         : "");
  }
  return "";
}

}  // namespace tf_hvd
