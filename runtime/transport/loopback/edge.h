// Edges between ranks of one process: ring buffers of a fixed size, like those
// in shared memory, so that writes can be partial here as well.
#ifndef TF_HVD_RUNTIME_TRANSPORT_LOOPBACK_EDGE_H_
#define TF_HVD_RUNTIME_TRANSPORT_LOOPBACK_EDGE_H_

#include <cstddef>
#include <vector>

#include "base/mutex.h"
#include "runtime/contract/doorbell.h"
#include "runtime/contract/edge.h"

namespace tf_hvd {

// One direction. Any thread.
class ByteRing {
 public:
  explicit ByteRing(size_t bytes) : ring_(bytes) {}

  // Accepts as many bytes as fit; the reader sees them only after Publish.
  size_t Write(const char* data, size_t size);
  void Publish();
  size_t Read(char* data, size_t size);
  bool Readable() const;

 private:
  mutable Mutex mutex_;
  std::vector<char> ring_ GUARDED_BY(mutex_);
  size_t begin_ GUARDED_BY(mutex_) = 0;      // position of the oldest byte
  size_t used_ GUARDED_BY(mutex_) = 0;       // number of bytes
  size_t published_ GUARDED_BY(mutex_) = 0;  // number of bytes that may be read
};

// An Edge. The rings and the bell belong to the worlds' shared state.
class LoopbackEdge final : public Edge {
 public:
  LoopbackEdge(ByteRing* in, ByteRing* out, Doorbell* neighbour)
      : in_(in), out_(out), neighbour_(neighbour) {}

  size_t Write(const char* data, size_t size) override {
    return out_->Write(data, size);
  }
  void Flush() override {
    out_->Publish();
    neighbour_->RingIfAsleep();
  }
  size_t Read(char* data, size_t size) override {
    return in_->Read(data, size);
  }
  bool Readable() const override { return in_->Readable(); }
  bool polled() const override { return false; }

 private:
  ByteRing* const in_;
  ByteRing* const out_;
  Doorbell* const neighbour_;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_LOOPBACK_EDGE_H_
