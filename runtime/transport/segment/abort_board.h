// AbortBoard: in the node's shared segment, the reasons that its ranks have
// written why the job cannot continue.
//
// Each rank writes only its own slot, so no lock is shared between processes. A
// rank that dies while writing damages only its own slot; readers skip its
// incomplete text.
#ifndef TF_HVD_RUNTIME_TRANSPORT_SEGMENT_ABORT_BOARD_H_
#define TF_HVD_RUNTIME_TRANSPORT_SEGMENT_ABORT_BOARD_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/mutex.h"
#include "runtime/contract/world.h"

namespace tf_hvd {

inline constexpr size_t kAbortTextBytes = AbortRecord::kMaxText + 1;

// Greater than the key of any record.
inline constexpr uint64_t kNoAbort = UINT64_MAX;

// In shared memory; zero-filled pages are a valid, empty state.
struct AbortSlot {
  std::atomic<uint32_t> version;  // odd: being written; 0: empty
  std::atomic<uint32_t> error_class;
  std::atomic<int32_t> rank;
  std::atomic<uint64_t> text[kAbortTextBytes / sizeof(uint64_t)];
};

struct AbortState {
  std::atomic<uint32_t> generation;  // counts the writes to all slots
  // ~flooded_key(), so that zero means that nothing was sent.
  std::atomic<uint64_t> flooded_complement;
};

class AbortBoard {
 public:
  // All in shared memory: `slots` of the node's `count` ranks; `own` is this
  // rank's.
  AbortBoard(AbortState* state, AbortSlot* slots, int count, int own)
      : state_(state), slots_(slots), count_(count), own_(own) {}

  // Any thread. False if this rank has already written an equal or smaller
  // record.
  bool Write(const AbortRecord& record);

  // Any thread: changes with every write of any rank; 0: nothing was written.
  uint32_t generation() const { return state_->generation; }

  // Any thread: the smallest record of all ranks.
  std::optional<AbortRecord> Smallest() const;

  // The key of the smallest record that was sent to other nodes.
  uint64_t flooded_key() const { return ~state_->flooded_complement.load(); }
  void set_flooded_key(uint64_t key) { state_->flooded_complement = ~key; }

 private:
  AbortState* const state_;
  AbortSlot* const slots_;
  const int count_;
  const int own_;
  Mutex write_;  // locks out other threads of this process
  uint64_t written_key_ GUARDED_BY(write_) = kNoAbort;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_SEGMENT_ABORT_BOARD_H_
