// ShmEdge: an edge of the tree inside a node, as two rings in shared memory.
// ShmRing: a queue of bytes in shared memory, from one rank to another. One
// writer and one reader at a time; neither ever waits.
#ifndef TF_HVD_RUNTIME_TRANSPORT_SEGMENT_EDGE_H_
#define TF_HVD_RUNTIME_TRANSPORT_SEGMENT_EDGE_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/counters.h"
#include "runtime/contract/doorbell.h"
#include "runtime/contract/edge.h"

namespace tf_hvd {

// A message of up to kLineBytes is sent in one line, which also signals its
// arrival. The other members are private to one side while there is room.
//
// Zero-filled pages are a valid, empty ring.
class ShmRing {
 public:
  static constexpr size_t kLines = 1024;
  static constexpr size_t kLineBytes = 55;
  static constexpr size_t kBytes = kLines * kLineBytes;

  // Writer: accepts as many bytes as fit.
  size_t Write(const char* data, size_t size) {
    const size_t wanted = (size + kLineBytes - 1) / kLineBytes;
    const size_t lines = std::min(wanted, Room(wanted));
    size_t taken = 0;
    for (size_t i = 0; i < lines; ++i) {
      Line& line = lines_[written_ % kLines];
      line.size = static_cast<uint8_t>(std::min(size - taken, kLineBytes));
      std::memcpy(line.data, data + taken, line.size);
      taken += line.size;
      line.number = ++written_;
    }
    Count(Counted::kLinesWritten, lines);
    return taken;
  }

  // Reader: returns the available bytes. `*writer_waits` is set if the writer
  // had to hold bytes back and needs a signal when there is room.
  size_t Read(char* data, size_t size, bool* writer_waits) {
    size_t given = 0;
    uint64_t next = read_.load(std::memory_order_relaxed);
    const uint64_t first = next;
    while (given < size) {
      const Line& line = lines_[next % kLines];
      if (line.number != next + 1) break;
      const size_t count = std::min(size - given, size_t{line.size} - used_);
      std::memcpy(data + given, line.data + used_, count);
      given += count;
      used_ += count;
      if (used_ < line.size) break;
      used_ = 0;
      ++next;
    }
    *writer_waits = false;
    if (next == first) return given;
    read_ = next;
    Count(Counted::kLinesRead, next - first);
    *writer_waits = writer_waits_ != 0 && writer_waits_.exchange(0);
    return given;
  }

  // Any rank.
  bool Readable() const {
    const uint64_t next = read_;
    return lines_[next % kLines].number == next + 1;
  }

 private:
  struct alignas(64) Line {
    // Of all lines, from 1; written when the line is complete.
    std::atomic<uint64_t> number;
    uint8_t size;
    char data[kLineBytes];
  };
  static_assert(sizeof(Line) == 64, "one line");

  // Number of free lines, counted up to `wanted` if that suffices.
  size_t Room(size_t wanted) {
    const auto room = [this] {
      return kLines - static_cast<size_t>(written_ - seen_);
    };
    if (room() >= wanted) return wanted;
    seen_ = read_;
    if (room() >= wanted) return wanted;
    // Before checking again: the reader may have just finished.
    writer_waits_ = 1;
    seen_ = read_;
    return room();
  }

  // Used only by the writer.
  alignas(64) uint64_t written_ = 0;
  uint64_t seen_ = 0;  // last known value of read_
  // The reader's; the writer reads it when the ring seems full.
  alignas(64) std::atomic<uint64_t> read_{0};
  size_t used_ = 0;  // of the next line
  alignas(64) std::atomic<uint32_t> writer_waits_{0};
  Line lines_[kLines];
};

static_assert(std::atomic<uint64_t>::is_always_lock_free,
              "shared between processes");

class ShmEdge : public Edge {
 public:
  // The arguments are in the segment, which must outlive the edge. `bell` is
  // the neighbour's.
  ShmEdge(ShmRing* out, ShmRing* in, Doorbell* bell)
      : out_(out), in_(in), bell_(bell) {}

  size_t Write(const char* data, size_t size) override {
    return out_->Write(data, size);
  }

  void Flush() override { bell_->RingIfAsleep(); }

  size_t Read(char* data, size_t size) override {
    bool writer_waits = false;
    const size_t given = in_->Read(data, size, &writer_waits);
    // Unconditionally: the neighbour may be about to sleep, when it checks for
    // arrivals but not for room.
    if (writer_waits) bell_->Ring();
    return given;
  }

  bool Readable() const override { return in_->Readable(); }
  bool polled() const override { return false; }

 private:
  ShmRing* const out_;
  ShmRing* const in_;
  Doorbell* const bell_;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_SEGMENT_EDGE_H_
