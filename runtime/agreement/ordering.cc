#include "runtime/agreement/ordering.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <tuple>
#include <utility>

namespace tf_hvd {
namespace {

// Joins come last: requests that were open when the last rank joined precede
// its end.
bool BatchOrder(const Response& a, const Response& b) {
  const bool a_join = a.key.second == kJoinName;
  const bool b_join = b.key.second == kJoinName;
  return std::tie(a_join, a.key.first, a.slot, a.key.second) <
         std::tie(b_join, b.key.first, b.slot, b.key.second);
}

// Why a process set cannot be removed; empty if it can, or for any other
// request. Checked here, because an earlier request in the order may remove the
// set.
std::string RemovalError(const ProcessSets& sets, const Request& request) {
  if (request.kind != OpKind::kRemoveSet) return "";
  if (request.removed_set == kWorldSet) {
    return "process set 0, which is all ranks, cannot be removed";
  }
  return sets.Find(request.removed_set) != nullptr
             ? ""
             : "there is no process set " + std::to_string(request.removed_set);
}

bool EndsSomething(const Response& response) {
  return response.close || (response.error.empty() &&
                            response.request->kind == OpKind::kRemoveSet);
}

}  // namespace

void Ordering::Add(const Key& key, Vote vote) {
  for (ToldSources& one : vote.told) {
    names_.Add(key.first, one.digest, std::move(one.bytes));
  }
  vote.told.clear();
  ready_.emplace(key, std::move(vote));
}

std::vector<Response> Ordering::TakeBatch() {
  std::vector<Response> batch;
  for (const auto& [key, vote] : ready_) {
    batch.push_back(MakeResponse(key, vote));
  }
  ready_.clear();
  std::sort(batch.begin(), batch.end(), BatchOrder);
  return batch;
}

std::vector<Response> Ordering::TakeBefore(const std::vector<Response>& batch) {
  const bool ends =
      !ready_.empty() && std::any_of(batch.begin(), batch.end(), EndsSomething);
  return ends ? TakeBatch() : std::vector<Response>();
}

Response Ordering::MakeResponse(const Key& key, const Vote& vote) {
  Response response;
  response.key = key;
  response.request = vote.first.request;
  response.error = Decide(key.second, vote, key.first, names_);
  if (response.error.empty()) {
    response.error = RemovalError(sets_, *response.request);
  }
  response.joined = vote.joined;
  response.value = vote.last_rank;
  if (!response.error.empty()) return response;
  if (response.request->kind == OpKind::kAddSet) response.value = next_set_++;
  SlotTable& slots = sets_.Find(key.first)->slots;
  response.slot = slots.Find(key.second, response.request);
  if (response.slot == kNoSlot && key.second != kJoinName) {
    response.slot = slots.Offer(key.second);
    response.define = response.slot != kNoSlot;
  }
  return response;
}

void Ordering::Forward(const std::vector<Response>& batch, const Send& send) {
  BatchEncoder encoder(batch);
  for (const int child : sets_.place().children) {
    std::vector<size_t> places;
    for (size_t i = 0; i < batch.size(); ++i) {
      const Response& response = batch[i];
      const ProcessSet* const set = sets_.Find(response.key.first);
      const bool concerned = response.close ||
                             response.key.first == kWorldSet ||
                             (set != nullptr && set->need.count(child) > 0);
      if (concerned) places.push_back(i);
    }
    if (!places.empty()) send(child, encoder.Encode(places));
  }
  responses_encoded_ += encoder.responses_encoded();
}

// Numbers were assigned in the order of names, which differs from the order of
// the batch.
void Ordering::SetAdded(int32_t set) {
  next_set_ = std::max(next_set_, set + 1);
}

void Ordering::DropSet(int32_t set) { EraseSet(set, &ready_); }

}  // namespace tf_hvd
