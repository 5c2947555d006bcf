// LoopbackArena: the memory of a ShmArena for ranks that are threads. Initially
// zero; untouched pages cost nothing.
#ifndef TF_HVD_RUNTIME_TRANSPORT_LOOPBACK_ARENA_H_
#define TF_HVD_RUNTIME_TRANSPORT_LOOPBACK_ARENA_H_

#include <sys/mman.h>

#include <cstddef>

#include "runtime/transport/segment/arena.h"

namespace tf_hvd {

class LoopbackArena {
 public:
  explicit LoopbackArena(int ranks)
      : ranks_(ranks),
        bytes_(ShmArena::BytesFor(ranks)),
        memory_(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  ~LoopbackArena() { munmap(memory_, bytes_); }
  LoopbackArena(const LoopbackArena&) = delete;
  LoopbackArena& operator=(const LoopbackArena&) = delete;

  ShmArena arena() const {
    return ShmArena(static_cast<char*>(memory_), ranks_);
  }

 private:
  const int ranks_;
  const size_t bytes_;
  void* const memory_;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_LOOPBACK_ARENA_H_
