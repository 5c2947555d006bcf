// ShmArena: the part of a node's shared memory through which tensors move
// (docs/adr/0010): slots that each rank writes and all others read, and lines
// by which they tell each other how far they are.
//
// A view of memory that somebody else owns and that is all zero at first. Each
// rank writes its own slots and lines only; everything else is for reading.
#ifndef TF_HVD_RUNTIME_TRANSPORT_SEGMENT_ARENA_H_
#define TF_HVD_RUNTIME_TRANSPORT_SEGMENT_ARENA_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace tf_hvd {

// How far one rank is with the pieces of one process set, which are counted
// from the start of the job and through all operations. Nobody else writes it.
struct alignas(64) ProgressLine {
  static constexpr size_t kSlots = 4;

  std::atomic<uint64_t> published{0};  // pieces whose input lies in a slot
  std::atomic<uint64_t> reduced{0};    // pieces whose slice has a result there
  std::atomic<uint64_t> done{0};       // pieces of which nothing more is read
  // How long this rank took for what others have put into piece i, at i %
  // kSlots: from when it is reduced, and from when it is done. 0: it was not
  // timed.
  std::atomic<uint32_t> consume_ns[kSlots] = {};
  std::atomic<uint32_t> gather_ns[kSlots] = {};
  // The slot of piece i at i % kSlots, from when it is published.
  std::atomic<uint8_t> slots[kSlots] = {};
};

static_assert(sizeof(ProgressLine) == 64, "one line");
static_assert(std::atomic<uint64_t>::is_always_lock_free &&
                  std::atomic<uint8_t>::is_always_lock_free,
              "shared between processes");

class ShmArena {
 public:
  static constexpr size_t kSlots = ProgressLine::kSlots;
  // Process sets with lines. Numbers of sets are never used again: those from
  // here on move their data otherwise.
  static constexpr int32_t kSets = 1024;

  ShmArena(char* memory, int local_size)
      : memory_(memory), ranks_(static_cast<size_t>(local_size)) {}

  // What an arena takes; a multiple of 64.
  static size_t BytesFor(int local_size) {
    return SlotsAt(local_size, local_size);
  }

  // Where in it the slots of a rank begin, or behind the last rank's, it ends.
  static size_t SlotsAt(int local_size, int local_rank) {
    const auto ranks = static_cast<size_t>(local_size);
    return ranks * kSets * sizeof(ProgressLine) +
           static_cast<size_t>(local_rank) * kSlots * SlotBytesFor(ranks);
  }

  // A share of the last cache for few ranks; of many, a slot has room for a
  // slice of each that is worth a step.
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
