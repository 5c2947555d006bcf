// ShmEdge: an edge of the tree inside a node, as two rings in shared memory.
// ShmRing: a queue of bytes in shared memory, from one rank to another. One
// writer and one reader at a time; neither ever waits.
#ifndef TF_HVD_RUNTIME_TRANSPORT_SHM_EDGE_H_
#define TF_HVD_RUNTIME_TRANSPORT_SHM_EDGE_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "runtime/transport/doorbell.h"
#include "runtime/transport/edge.h"

namespace tf_hvd {

// Zero-filled pages are a valid, empty ring.
class ShmRing {
 public:
  static constexpr size_t kBytes = 64 * 1024;

  // Writer: takes what fits.
  size_t Write(const char* data, size_t size) {
    const uint64_t end = written_.load(std::memory_order_relaxed);
    if (kBytes - static_cast<size_t>(end - read_) < size) {
      writer_waits_ = 1;  // before the second look: the reader may be just done
    }
    const size_t room = kBytes - static_cast<size_t>(end - read_);
    const size_t taken = std::min(size, room);
    const size_t at = static_cast<size_t>(end % kBytes);
    const size_t first = std::min(taken, kBytes - at);
    std::memcpy(data_ + at, data, first);
    std::memcpy(data_, data + first, taken - first);
    written_ = end + taken;
    return taken;
  }

  // Reader: gives what is there. `*writer_waits` is set if the writer had to
  // keep something back and wants to know of the new room.
  size_t Read(char* data, size_t size, bool* writer_waits) {
    const uint64_t begin = read_.load(std::memory_order_relaxed);
    const size_t given = std::min(size, static_cast<size_t>(written_ - begin));
    const size_t at = static_cast<size_t>(begin % kBytes);
    const size_t first = std::min(given, kBytes - at);
    std::memcpy(data, data_ + at, first);
    std::memcpy(data + first, data_, given - first);
    read_ = begin + given;
    *writer_waits =
        given > 0 && writer_waits_ != 0 && writer_waits_.exchange(0);
    return given;
  }

  // Anybody.
  bool Readable() const { return written_ != read_; }

 private:
  alignas(64) std::atomic<uint64_t> written_{0};
  alignas(64) std::atomic<uint64_t> read_{0};
  alignas(64) std::atomic<uint32_t> writer_waits_{0};
  alignas(64) char data_[kBytes];
};

static_assert(std::atomic<uint64_t>::is_always_lock_free,
              "shared between processes");

class ShmEdge : public Edge {
 public:
  // All three lie in the segment, which must outlive the edge. `bell` is the
  // neighbour's.
  ShmEdge(ShmRing* out, ShmRing* in, Doorbell* bell)
      : out_(out), in_(in), bell_(bell) {}

  size_t Write(const char* data, size_t size) override {
    return out_->Write(data, size);
  }

  void Flush() override { bell_->RingIfAsleep(); }

  size_t Read(char* data, size_t size) override {
    bool writer_waits = false;
    const size_t given = in_->Read(data, size, &writer_waits);
    // Not only if asleep: it may be on its way to sleep, looking for arrivals
    // but not for room.
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

#endif  // TF_HVD_RUNTIME_TRANSPORT_SHM_EDGE_H_
