// ProcessSet: one set of ranks as a controller of the tree sees it: who of it
// lies in which child's subtree, and the slots that stand for the names in use.
// ProcessSets: all of them, and the place in the tree that they are seen from.
//
// Owned by the holder of the progress lock.
#ifndef TF_HVD_RUNTIME_AGREEMENT_PROCESS_SET_H_
#define TF_HVD_RUNTIME_AGREEMENT_PROCESS_SET_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "runtime/agreement/message.h"
#include "runtime/agreement/tree.h"
#include "runtime/request/request.h"

namespace tf_hvd {

// Slots shorten messages: a number for a (name, request) that was agreed
// before. Numbers count up and are never reused.
class SlotTable {
 public:
  static constexpr uint32_t kMaxSlots = 4096;

  struct Slot {
    std::string name;
    SharedRequest request;
  };

  // The slot of `name` if its request is `request`, else kNoSlot.
  uint32_t Find(const std::string& name, const SharedRequest& request) const;
  // `request` as the slot of `name` has it, so that it needs no encoding, else
  // a new one.
  SharedRequest Share(const std::string& name, const Request& request) const;

  // True if `name` has a slot: it was agreed at least twice.
  bool Knows(const std::string& name) const { return numbers_.count(name) > 0; }

  // Null if there is no such slot.
  const Slot* Get(uint32_t slot) const;

  // Coordinator: `name` was agreed. The number of a new slot for it
  // when that is the second time (kNoSlot otherwise); the batch then defines
  // it.
  uint32_t Offer(const std::string& name);

  // What a batch said. False if the numbers are out of step (a bug).
  [[nodiscard]] bool Define(uint32_t slot, std::string name,
                            SharedRequest request);

 private:
  std::vector<Slot> slots_;
  std::unordered_map<std::string, uint32_t> numbers_;
  uint32_t offered_ = 0;  // runs ahead of slots_ by what is in this batch
  // Names agreed once; emptied when full, so one-time names cost no memory.
  std::unordered_set<std::string> seen_;
};

struct ProcessSet {
  // `place` is that of `rank` in the tree.
  ProcessSet(SetMembers set_members, int rank, const TreePlace& place);

  SetMembers members;
  // Child (or this rank itself) -> number of members in its subtree, all > 0.
  std::map<int, int> need;
  bool coordinated = false;  // all members lie in this controller's subtree
  bool member = false;       // this rank is one
  // After a join the ranks have made different numbers of steps, and go on
  // together: from then on steps count from the first call. By name and hash of
  // the request: optimizers of several models may share a name.
  bool has_joined = false;
  std::map<std::pair<std::string, size_t>, int64_t> first_steps;
  SlotTable slots;

  // The step to compare with other ranks' of a call of `name` at `step`.
  int64_t SinceJoin(const std::string& name, const SharedRequest& request,
                    int64_t step);
  // The last member has joined.
  void JoinEnded();
};

class ProcessSets {
 public:
  // `world`: all ranks. `place` is that of `rank` in the tree.
  ProcessSets(int rank, SetMembers world, TreePlace place);

  int rank() const { return rank_; }
  const TreePlace& place() const { return place_; }
  const ProcessSet& world() const { return sets_.at(kWorldSet); }

  // Null if there is no such set.
  ProcessSet* Find(int32_t set);
  const ProcessSet* Find(int32_t set) const;
  // True if there was such a set, and it has been removed.
  bool Removed(int32_t set) const { return removed_.count(set) > 0; }

  const ProcessSet& Add(int32_t set, std::vector<int> members);
  // False if there is no such set.
  bool Remove(int32_t set);

 private:
  const int rank_;
  const TreePlace place_;
  std::map<int32_t, ProcessSet> sets_;
  std::set<int32_t> removed_;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_AGREEMENT_PROCESS_SET_H_
