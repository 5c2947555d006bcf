// Edge: a reliable first-in-first-out stream of bytes from and to one
// neighbour in the tree (agreement.md, section 2). Never blocks.
//
// Read, Write and Flush are called by the holder of the progress lock only.
// Readable may be called on any thread.
#ifndef TF_HVD_RUNTIME_CONTRACT_EDGE_H_
#define TF_HVD_RUNTIME_CONTRACT_EDGE_H_

#include <cstddef>

namespace tf_hvd {

class Edge {
 public:
  virtual ~Edge() = default;

  // Takes as many of the `size` bytes as fit now and returns their number.
  virtual size_t Write(const char* data, size_t size) = 0;

  // Makes what was written visible and wakes the neighbour if it sleeps.
  // Called once after a series of writes.
  virtual void Flush() = 0;

  // Gives up to `size` bytes that have arrived and returns their number.
  virtual size_t Read(char* data, size_t size) = 0;

  // True if Read would give something. May say false for an edge whose
  // arrivals only the holder of the progress lock can see (MPI); `polled` says
  // so.
  virtual bool Readable() const = 0;

  // True if arrivals wake nobody: a sleeper must look from time to time.
  virtual bool polled() const = 0;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_CONTRACT_EDGE_H_
