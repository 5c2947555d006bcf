// PinnedBackend: collectives of GPU tensors through host memory: copied to
// pinned memory, moved by a host backend, copied back. Used for everything that
// NCCL does not support, and without NCCL.
//
// The host's operation is made immediately, in the agreed order, and continues
// when the copies are done. Other ranks' operations wait for it; no thread
// does.
//
// As for Backend, called only by the holder of the progress lock.
#ifndef TF_HVD_RUNTIME_TRANSPORT_GPU_PINNED_BACKEND_H_
#define TF_HVD_RUNTIME_TRANSPORT_GPU_PINNED_BACKEND_H_

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "base/status.h"
#include "runtime/contract/operation.h"
#include "runtime/transport/gpu/devices.h"

namespace tf_hvd {

class PinnedBackend final : public Backend {
 public:
  // `devices` and `host` outlive the backend; `host` is notified of sets
  // separately. `on_use`: called before each operation of tensors on a GPU; may
  // be null.
  PinnedBackend(GpuDevices* devices, Backend* host, int rank,
                std::function<void()> on_use = nullptr)
      : devices_(devices),
        host_(host),
        rank_(rank),
        on_use_(std::move(on_use)) {}
  std::string_view name() const override { return "host"; }

  bool Serves(const OperationSpec& spec) const override;
  Status Make(OperationSpec spec,
              std::unique_ptr<Operation>* operation) override;
  size_t window() const override { return host_->window(); }

 private:
  friend class PinnedOperation;

  // Pinned memory, or memory of the device, reused by later operations.
  struct Block {
    std::shared_ptr<char> memory;
    size_t bytes = 0;
    MemoryKind kind = MemoryKind::kPinned;
    int device = 0;
  };

  Status StreamOf(const std::shared_ptr<GpuDevice>& device, CudaStream* stream);
  // Allocates blocks for all operations that may be in progress, once. Later
  // steps with more operations in progress then need not wait for an
  // allocation.
  Status Fill(GpuDevice* device, MemoryKind kind);
  Status Take(GpuDevice* device, MemoryKind kind, size_t bytes, Block* block);
  void GiveBack(Block block);

  GpuDevices* const devices_;
  Backend* const host_;
  const int rank_;
  const std::function<void()> on_use_;
  std::map<int, CudaStream> streams_;  // by device
  std::set<std::pair<int, MemoryKind>> filled_;
  std::vector<Block> free_;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_GPU_PINNED_BACKEND_H_
