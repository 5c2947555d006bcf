#include "runtime/agreement/votes.h"

#include <algorithm>
#include <utility>

namespace tf_hvd {
namespace {

bool AllVoted(const ProcessSet& set, const std::set<int>& voted,
              const std::set<int>& joined) {
  for (const auto& [child, members] : set.need) {
    if (voted.count(child) == 0 && joined.count(child) == 0) return false;
  }
  return true;
}

}  // namespace

std::optional<std::vector<CompleteVote>> Votes::Count(const ProcessSet& set,
                                                      int child, const Key& key,
                                                      const Vote& vote) {
  Tally& tally = tallies_[key];
  tally.vote = tally.voted.empty() ? vote : Merge(tally.vote, vote);
  if (!tally.voted.insert(child).second) return std::nullopt;
  std::vector<CompleteVote> complete;
  if (key.second != kJoinName) {
    Settle(set, key, &complete);
    return complete;
  }

  // Open requests are settled before the join is passed on. Otherwise the
  // parent counts this child as joined, finishes without its vote, and counts
  // the late vote for the next instance.
  joined_[key.first].insert(child);
  std::vector<Key> open;
  for (const auto& [other, unused] : tallies_) {
    if (other.first == key.first && other.second != kJoinName) {
      open.push_back(other);
    }
  }
  for (const Key& other : open) Settle(set, other, &complete);
  Settle(set, key, &complete);
  return complete;
}

void Votes::Settle(const ProcessSet& set, const Key& key,
                   std::vector<CompleteVote>* complete) {
  const auto it = tallies_.find(key);
  if (it == tallies_.end()) return;
  const std::set<int>& joined = joined_[key.first];
  if (!AllVoted(set, it->second.voted, joined)) return;
  Vote vote = std::move(it->second.vote);
  // A rank that voted before it joined takes part with its data.
  if (it->second.voted.size() < set.need.size()) vote.joined = true;
  tallies_.erase(it);
  if (!set.coordinated) passed_up_.insert(key);
  complete->push_back({key, std::move(vote)});
}

void Votes::Ordered(const Key& key) {
  passed_up_.erase(key);
  if (key.second == kJoinName) joined_.erase(key.first);
}

void Votes::DropSet(int32_t set) {
  joined_.erase(set);
  EraseSet(set, &tallies_);
  EraseSet(set, &passed_up_);
}

void Votes::Clear() {
  tallies_.clear();
  joined_.clear();
  passed_up_.clear();
}

bool Votes::RelaysForOthers(const ProcessSets& sets) const {
  const auto others = [&sets](const Key& key) {
    return !sets.Find(key.first)->member;
  };
  return std::any_of(tallies_.begin(), tallies_.end(),
                     [&](const auto& tally) { return others(tally.first); }) ||
         std::any_of(passed_up_.begin(), passed_up_.end(), others);
}

}  // namespace tf_hvd
