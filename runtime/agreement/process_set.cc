#include "runtime/agreement/process_set.h"

#include <algorithm>
#include <functional>
#include <string_view>
#include <utility>

namespace tf_hvd {

uint32_t SlotTable::Find(const std::string& name,
                         const SharedRequest& request) const {
  const auto it = numbers_.find(name);
  if (it == numbers_.end() || slots_[it->second].request != request) {
    return kNoSlot;
  }
  return it->second;
}

SharedRequest SlotTable::Share(const std::string& name,
                               const Request& request) const {
  const auto it = numbers_.find(name);
  if (it != numbers_.end() && *slots_[it->second].request == request) {
    return slots_[it->second].request;
  }
  return SharedRequest(request);
}

const SlotTable::Slot* SlotTable::Get(uint32_t slot) const {
  return slot < slots_.size() ? &slots_[slot] : nullptr;
}

uint32_t SlotTable::Offer(const std::string& name) {
  if (numbers_.count(name) > 0 || offered_ >= kMaxSlots) return kNoSlot;
  if (seen_.erase(name) > 0) return offered_++;
  if (seen_.size() >= kMaxSlots) seen_.clear();
  seen_.insert(name);
  return kNoSlot;
}

bool SlotTable::Define(uint32_t slot, std::string name, SharedRequest request) {
  if (slot != slots_.size()) return false;
  numbers_.emplace(name, slot);
  slots_.push_back({std::move(name), std::move(request)});
  return true;
}

ProcessSet::ProcessSet(SetMembers set_members, int rank, const TreePlace& place)
    : members(std::move(set_members)) {
  const auto is_member = [this](int r) {
    return std::binary_search(members->begin(), members->end(), r);
  };
  size_t here = 0;
  for (size_t i = 0; i < place.children.size(); ++i) {
    const auto& below = place.below[i];
    const auto count = std::count_if(below.begin(), below.end(), is_member);
    if (count > 0) need[place.children[i]] = static_cast<int>(count);
    here += static_cast<size_t>(count);
  }
  member = is_member(rank);
  if (member) {
    need[rank] = 1;
    ++here;
  }
  coordinated = here == members->size();
}

int64_t ProcessSet::SinceJoin(const std::string& name,
                              const SharedRequest& request, int64_t step) {
  if (!has_joined || step < 0) return step;
  const size_t hash = std::hash<std::string_view>()(request.bytes());
  int64_t& first = first_steps.try_emplace({name, hash}, step).first->second;
  first = std::min(first, step);  // a recreated optimizer starts counting again
  return step - first;
}

void ProcessSet::JoinEnded() {
  has_joined = true;
  first_steps.clear();
}

ProcessSets::ProcessSets(int rank, SetMembers world, TreePlace place)
    : rank_(rank), place_(std::move(place)) {
  sets_.emplace(kWorldSet, ProcessSet(std::move(world), rank_, place_));
}

ProcessSet* ProcessSets::Find(int32_t set) {
  const auto found = sets_.find(set);
  return found == sets_.end() ? nullptr : &found->second;
}

const ProcessSet* ProcessSets::Find(int32_t set) const {
  const auto found = sets_.find(set);
  return found == sets_.end() ? nullptr : &found->second;
}

const ProcessSet& ProcessSets::Add(int32_t set, std::vector<int> members) {
  return sets_
      .emplace(set, ProcessSet(MembersOf(std::move(members)), rank_, place_))
      .first->second;
}

bool ProcessSets::Remove(int32_t set) {
  if (sets_.erase(set) == 0) return false;
  removed_.insert(set);
  return true;
}

}  // namespace tf_hvd
