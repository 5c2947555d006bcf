// AccessLog: records all accesses to memory with their happens-before order.
// Two accesses, at least one of them a write, must be ordered: by a stream, by
// an event that one of them waits for, or by a host that has seen an event.
// Unordered accesses are found regardless of their actual times.
//
// Vector clocks: Mattern, "Virtual Time and Global States of Distributed
// Systems", 1989. Not locked: the machine's lock is held.
#ifndef TF_HVD_TESTS_GPU_ACCESS_LOG_H_
#define TF_HVD_TESTS_GPU_ACCESS_LOG_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

namespace tf_hvd {

// The latest known time of each actor (a stream or a host).
class VectorClock {
 public:
  uint64_t of(int actor) const {
    const auto found = at_.find(actor);
    return found == at_.end() ? 0 : found->second;
  }
  uint64_t Tick(int actor) { return ++at_[actor]; }
  void Join(const VectorClock& other) {
    for (const auto& [actor, time] : other.at_) {
      at_[actor] = std::max(at_[actor], time);
    }
  }

 private:
  std::map<int, uint64_t> at_;
};

class AccessLog {
 public:
  struct Access {
    int actor = -1;
    uint64_t time = 0;
    std::string what;
  };

  // Memory is added or removed; its recorded accesses are forgotten.
  void Add(uintptr_t begin, size_t bytes, const std::string& name) {
    allocations_[begin] = {begin + bytes, name};
  }
  void Remove(uintptr_t begin) {
    const auto found = allocations_.find(begin);
    Cut(begin, found->second.end);
    parts_.erase(parts_.lower_bound(begin),
                 parts_.lower_bound(found->second.end));
    allocations_.erase(found);
  }
  bool Has(uintptr_t begin) const { return allocations_.count(begin) > 0; }

  // Records an access and returns its fault; empty if there is none.
  std::string Touch(uintptr_t begin, size_t bytes, bool writes,
                    const Access& access, const VectorClock& clock) {
    if (bytes == 0) return "";
    const uintptr_t end = begin + bytes;
    auto allocation = allocations_.upper_bound(begin);
    if (end < begin || allocation == allocations_.begin() ||
        std::prev(allocation)->second.end < end) {
      return access.what + " touches memory that does not exist";
    }
    const std::string& name = std::prev(allocation)->second.name;
    Cut(begin, end);
    std::string wrong;
    for (auto part = parts_.lower_bound(begin);
         part != parts_.end() && part->first < end; ++part) {
      State& state = part->second.state;
      const auto unordered = [&](const Access& before, const char* did) {
        if (before.actor < 0 || clock.of(before.actor) >= before.time) return;
        wrong = access.what + (writes ? " writes " : " reads ") + name +
                ", which " + before.what + did + ", and they are not ordered";
      };
      unordered(state.write, " writes");
      for (const auto& [actor, read] : state.reads) {
        if (writes) unordered(read, " reads");
      }
      if (writes) {
        state = {access, {}};
      } else {
        state.reads[access.actor] = access;
      }
    }
    return wrong;
  }

 private:
  struct Allocation {
    uintptr_t end;
    std::string name;
  };
  struct State {
    Access write;
    std::map<int, Access> reads;
  };
  struct Part {
    uintptr_t end;
    State state;
  };

  // Splits parts so that some begin and end there, and they cover the whole
  // range.
  void Cut(uintptr_t begin, uintptr_t end) {
    CutAt(begin);
    CutAt(end);
    for (uintptr_t at = begin; at < end;) {
      const auto next = parts_.lower_bound(at);
      const bool covered = next != parts_.end() && next->first == at;
      const uintptr_t until =
          covered ? next->second.end
                  : std::min(end, next == parts_.end() ? end : next->first);
      if (!covered) parts_[at] = {until, {}};
      at = until;
    }
  }

  void CutAt(uintptr_t at) {
    auto part = parts_.lower_bound(at);
    if (part == parts_.begin()) return;
    --part;
    if (part->second.end <= at) return;
    parts_[at] = part->second;
    part->second.end = at;
  }

  std::map<uintptr_t, Allocation> allocations_;
  std::map<uintptr_t, Part> parts_;
};

}  // namespace tf_hvd

#endif  // TF_HVD_TESTS_GPU_ACCESS_LOG_H_
