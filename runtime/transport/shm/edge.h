// ShmEdge: an edge of the tree inside a node, as two rings in shared memory.
#ifndef TF_HVD_RUNTIME_TRANSPORT_SHM_EDGE_H_
#define TF_HVD_RUNTIME_TRANSPORT_SHM_EDGE_H_

#include "runtime/transport/doorbell.h"
#include "runtime/transport/edge.h"
#include "runtime/transport/shm/ring.h"

namespace tf_hvd {

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
