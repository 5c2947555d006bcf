// Memory: where the tensors of a request lie. Span: one run of elements there.
#ifndef TF_HVD_BASE_MEMORY_H_
#define TF_HVD_BASE_MEMORY_H_

#include <cstdint>
#include <memory>

namespace tf_hvd {

class GpuEvent;  // gpu/device.h

enum class MemoryKind : uint8_t { kHost, kPinned, kDevice };

struct Memory {
  MemoryKind kind = MemoryKind::kHost;
  // Of kDevice: which, among those that this process sees; -1 for a rank that
  // has joined, and has no tensor.
  int device = -1;
  // Of kDevice: after this it may be used. Null: at once.
  std::shared_ptr<GpuEvent> ready;
};

// `input` is read, `output` is written; they may be equal. A null `input`
// stands for zeros (a rank that has joined), a null `output` for nowhere.
struct Span {
  const void* input = nullptr;
  void* output = nullptr;
  int64_t count = 0;  // elements
};

}  // namespace tf_hvd

#endif  // TF_HVD_BASE_MEMORY_H_
