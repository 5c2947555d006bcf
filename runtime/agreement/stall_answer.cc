#include "runtime/agreement/stall_answer.h"

#include <algorithm>
#include <iterator>

namespace tf_hvd {
namespace {

// Compares everything except the ranks. Ranks that compile may be at different
// lines; the line of the lowest represents them. There is room for only a few
// groups, and a sleeping rank must be in one of them.
bool SameWait(const WaitGroup& a, const WaitGroup& b) {
  const bool compile = !a.compiling.empty() && a.waits_for.empty();
  return a.waits_for == b.waits_for && a.ever_compiled == b.ever_compiled &&
         a.waits_in_compiled == b.waits_in_compiled &&
         a.compiling == b.compiling && (compile || a.place == b.place);
}

bool LowerRank(const WaitGroup& a, const WaitGroup& b) {
  return a.ranks.named < b.ranks.named;
}

}  // namespace

RankList::RankList(const std::vector<int>& ranks)
    : named(ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(std::min(
                                               ranks.size(), kMaxNamed))),
      count(static_cast<uint32_t>(ranks.size())) {}

RankList Merge(const RankList& a, const RankList& b) {
  RankList merged;
  std::merge(a.named.begin(), a.named.end(), b.named.begin(), b.named.end(),
             std::back_inserter(merged.named));
  if (merged.named.size() > RankList::kMaxNamed) {
    merged.named.resize(RankList::kMaxNamed);
  }
  merged.count = a.count + b.count;
  return merged;
}

StallAnswer Merge(const StallAnswer& a, const StallAnswer& b) {
  StallAnswer merged;
  merged.agreed = a.agreed || b.agreed;
  merged.age_ms = std::max(a.age_ms, b.age_ms);
  merged.stuck_ms = std::min(a.stuck_ms, b.stuck_ms);
  merged.voted = Merge(a.voted, b.voted);
  merged.missing = Merge(a.missing, b.missing);
  merged.silent = Merge(a.silent, b.silent);
  merged.waits = a.waits;
  for (const WaitGroup& group : b.waits) {
    const auto same = std::find_if(
        merged.waits.begin(), merged.waits.end(),
        [&group](const WaitGroup& other) { return SameWait(group, other); });
    if (same == merged.waits.end()) {
      merged.waits.push_back(group);
    } else {
      if (LowerRank(group, *same)) same->place = group.place;
      same->ranks = Merge(same->ranks, group.ranks);
    }
  }
  std::sort(merged.waits.begin(), merged.waits.end(), LowerRank);
  if (merged.waits.size() > StallAnswer::kMaxGroups) {
    merged.waits.resize(StallAnswer::kMaxGroups);
  }
  return merged;
}

}  // namespace tf_hvd
