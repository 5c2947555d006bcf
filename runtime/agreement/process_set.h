// ProcessSet: one set of ranks as seen by a controller of the tree: the number
// of members in each child's subtree, and the slots that stand for the names in
// use. ProcessSets: all sets, and this rank's place in the tree.
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

// Slots shorten messages: a number stands for a (name, request) pair that was
// agreed before. Numbers increase and are never reused.
class SlotTable {
 public:
  static constexpr uint32_t kMaxSlots = 4096;

  struct Slot {
    std::string name;
    SharedRequest request;
  };

  // The slot of `name` if its request is `request`, else kNoSlot.
  uint32_t Find(const std::string& name, const SharedRequest& request) const;
  // `request` as stored in the slot of `name`, which needs no encoding;
  // otherwise a new one.
  SharedRequest Share(const std::string& name, const Request& request) const;

  // True if `name` has a slot: it was agreed at least twice.
  bool Knows(const std::string& name) const { return numbers_.count(name) > 0; }

  // Null if the slot does not exist.
  const Slot* Get(uint32_t slot) const;

  // Coordinator: `name` was agreed. Returns the number of a new slot the second
  // time (kNoSlot otherwise); the batch then defines it.
  uint32_t Offer(const std::string& name);

  // Adds a slot that a batch defines. False if the numbers are out of step (a
  // bug).
  [[nodiscard]] bool Define(uint32_t slot, std::string name,
                            SharedRequest request);

 private:
  std::vector<Slot> slots_;
  std::unordered_map<std::string, uint32_t> numbers_;
  uint32_t offered_ = 0;  // ahead of slots_ by the new slots of this batch
  // Names agreed once; emptied when full, so one-time names cost no memory.
  std::unordered_set<std::string> seen_;
};

struct ProcessSet {
  // `place` is that of `rank` in the tree.
  ProcessSet(SetMembers set_members, int rank, const TreePlace& place);

  SetMembers members;
  // Child (or this rank itself) -> number of members in its subtree, all > 0.
  std::map<int, int> need;
  // All members are below this controller, or are this rank.
  bool coordinated = false;
  bool member = false;  // this rank is a member
  // After a join the ranks have made different numbers of steps, so steps are
  // counted from the first call after it. By name and hash of the request,
  // because optimizers of several models may share a name.
  bool has_joined = false;
  std::map<std::pair<std::string, size_t>, int64_t> first_steps;
  SlotTable slots;

  // The step to compare with other ranks', for a call of `name` at `step`.
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

  // Null if the set does not exist.
  ProcessSet* Find(int32_t set);
  const ProcessSet* Find(int32_t set) const;
  // True if the set existed and has been removed.
  bool Removed(int32_t set) const { return removed_.count(set) > 0; }

  const ProcessSet& Add(int32_t set, std::vector<int> members);
  // False if the set does not exist.
  bool Remove(int32_t set);

 private:
  const int rank_;
  const TreePlace place_;
  std::map<int32_t, ProcessSet> sets_;
  std::set<int32_t> removed_;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_AGREEMENT_PROCESS_SET_H_
