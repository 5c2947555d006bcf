// Memory: the kind of memory that holds a request's tensors. Span: one run of
// elements there.
#ifndef TF_HVD_BASE_MEMORY_H_
#define TF_HVD_BASE_MEMORY_H_

#include <cstdint>
#include <memory>

namespace tf_hvd {

class GpuEvent;  // gpu/device.h

enum class MemoryKind : uint8_t { kHost, kPinned, kDevice };

struct Memory {
  MemoryKind kind = MemoryKind::kHost;
  // For kDevice: the GPU's number among those visible to this process; -1 for a
  // rank that has joined and has no tensor.
  int device = -1;
  // For kDevice: the memory may be used after this event. Null: immediately.
  std::shared_ptr<GpuEvent> ready;
};

// `input` is read, `output` is written; they may be equal. A null `input`
// stands for zeros (a rank that has joined). With a null `output` the result is
// discarded.
struct Span {
  const void* input = nullptr;
  void* output = nullptr;
  int64_t count = 0;  // elements
};

}  // namespace tf_hvd

#endif  // TF_HVD_BASE_MEMORY_H_
