// Edge: a reliable FIFO stream of bytes from and to one neighbour in the tree
// (agreement.md, section 2). Never blocks.
//
// Read, Write and Flush are called only by the holder of the progress lock.
// Readable may be called on any thread.
#ifndef TF_HVD_RUNTIME_CONTRACT_EDGE_H_
#define TF_HVD_RUNTIME_CONTRACT_EDGE_H_

#include <cstddef>

namespace tf_hvd {

class Edge {
 public:
  virtual ~Edge() = default;

  // Accepts as many of the `size` bytes as fit now and returns their number.
  virtual size_t Write(const char* data, size_t size) = 0;

  // Makes the written bytes visible and wakes the neighbour if it sleeps.
  // Called once after a series of writes.
  virtual void Flush() = 0;

  // Copies up to `size` received bytes to `data` and returns their number.
  virtual size_t Read(char* data, size_t size) = 0;

  // True if Read would return bytes. May be false if only the holder of the
  // progress lock can see arrivals (MPI); `polled` is true for such an edge.
  virtual bool Readable() const = 0;

  // True if an arrival wakes no thread, so a sleeping rank must poll
  // periodically.
  virtual bool polled() const = 0;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_CONTRACT_EDGE_H_
