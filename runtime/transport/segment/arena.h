// ShmArena: the part of a node's shared memory that tensors move through
// (docs/adr/0010): slots that each rank writes and all others read, and lines
// in which the ranks publish their progress.
//
// A view of memory that another object owns and that is initially zero. Each
// rank writes only its own slots and lines.
#ifndef TF_HVD_RUNTIME_TRANSPORT_SEGMENT_ARENA_H_
#define TF_HVD_RUNTIME_TRANSPORT_SEGMENT_ARENA_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace tf_hvd {

// One rank's progress with the pieces of one process set, which are counted
// from the start of the job through all operations. Only that rank writes it.
struct alignas(64) ProgressLine {
  static constexpr size_t kSlots = 4;

  std::atomic<uint64_t> published{0};  // pieces with the input in a slot
  std::atomic<uint64_t> reduced{0};  // pieces with the slice's result in a slot
  std::atomic<uint64_t> done{0};  // pieces that this rank has finished reading
  // How long this rank took for the other ranks' data of piece i, at i %
  // kSlots: for inputs, valid once the piece is reduced, and for results, once
  // it is done. 0: not timed.
  std::atomic<uint32_t> consume_ns[kSlots] = {};
  std::atomic<uint32_t> gather_ns[kSlots] = {};
  // The slot of piece i, at i % kSlots; valid once the piece is published.
  std::atomic<uint8_t> slots[kSlots] = {};
};

static_assert(sizeof(ProgressLine) == 64, "one line");
static_assert(std::atomic<uint64_t>::is_always_lock_free &&
                  std::atomic<uint8_t>::is_always_lock_free,
              "shared between processes");

class ShmArena {
 public:
  static constexpr size_t kSlots = ProgressLine::kSlots;
  // Number of process sets with lines. Numbers of sets are never reused; sets
  // with higher numbers use another backend.
  static constexpr int32_t kSets = 1024;

  ShmArena(char* memory, int local_size)
      : memory_(memory), ranks_(static_cast<size_t>(local_size)) {}

  // The size of an arena; a multiple of 64.
  static size_t BytesFor(int local_size) {
    return SlotsAt(local_size, local_size);
  }

  // The offset of a rank's slots; after the last rank's, the end.
  static size_t SlotsAt(int local_size, int local_rank) {
    const auto ranks = static_cast<size_t>(local_size);
    return ranks * kSets * sizeof(ProgressLine) +
           static_cast<size_t>(local_rank) * kSlots * SlotBytesFor(ranks);
  }

  // For few ranks, a share of the last-level cache. For many ranks, enough room
  // for a slice of each that is large enough for one step.
  static constexpr size_t SlotBytesFor(size_t ranks) {
    return ranks <= 8 ? size_t{1} << 20 : size_t{256} << 10;
  }
  size_t slot_bytes() const { return SlotBytesFor(ranks_); }

  ProgressLine* line(int32_t set, size_t local_rank) const {
    const size_t index = static_cast<size_t>(set) * ranks_ + local_rank;
    return reinterpret_cast<ProgressLine*>(memory_) + index;
  }
  char* slot(size_t local_rank, size_t index) const {
    return memory_ + kSets * ranks_ * sizeof(ProgressLine) +
           (local_rank * kSlots + index) * slot_bytes();
  }

 private:
  char* const memory_;
  const size_t ranks_;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_SEGMENT_ARENA_H_
