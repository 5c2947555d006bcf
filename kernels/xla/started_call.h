// StartedCall: a collective of a compiled step, from its start until the
// runtime has released its memory, which belongs to XLA. XLA frees that memory
// as soon as any part of the step fails. A call that has not begun by then
// continues with a copy, since the other ranks rely on it. A call that has
// begun is waited for.
//
// Any thread.
#ifndef TF_HVD_KERNELS_XLA_STARTED_CALL_H_
#define TF_HVD_KERNELS_XLA_STARTED_CALL_H_

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/memory.h"
#include "base/mutex.h"
#include "base/status.h"
#include "kernels/xla/compiled_calls.h"
#include "runtime/request/entry.h"
#include "runtime/transport/gpu/device.h"

namespace tf_hvd {

class StartedCall final : public EntryListener {
 public:
  using Deadline = std::chrono::steady_clock::time_point;

  // Memory that the request uses.
  struct Piece {
    void* data = nullptr;
    size_t bytes = 0;
    bool is_read = false;
  };

  StartedCall() : caller_(std::make_shared<CallerState>()) {}

  const std::shared_ptr<CallerState>& caller() const { return caller_; }

  // Once, before the request is submitted.
  void Use(std::vector<Piece> pieces) { pieces_ = std::move(pieces); }
  // On a GPU. `who`, `what`: for an error that occurs after the step has
  // continued.
  void UseOn(CudaStream stream, std::shared_ptr<GpuEvent> ready,
             std::string who, std::string what);

  // Where a piece is now, and on a GPU the event after which it may be used.
  void* Where(void* piece);
  std::shared_ptr<GpuEvent> Ready();

  // EntryListener
  void Begins(Entry* entry) override;
  void Enqueued(std::shared_ptr<GpuEvent> event) override;

  // The request has ended.
  void Complete(const Status& status);
  // The runtime no longer touches the memory.
  void Release();

  // Call it once. Returns the status of a request that has ended. Otherwise
  // returns nothing, and the thread that ends the request calls `later`.
  std::optional<Status> Await(CompiledCalls::Ended later);
  // Waits until the request has ended (`event` is null then) or its remaining
  // work is enqueued on a stream of the device.
  Status AwaitOnDevice(std::shared_ptr<GpuEvent>* event);

  // The step has failed: makes the runtime stop using XLA's memory, as far as
  // possible by `deadline`, which the first such call sets. If the request has
  // not ended, current and later waiters get `status`.
  void Leave(const Status& status, Deadline deadline);

 private:
  Status CopyAway() REQUIRES(mutex_);
  void* Moved(const void* piece) const REQUIRES(mutex_);

  const std::shared_ptr<CallerState> caller_;
  std::vector<Piece> pieces_;    // fixed once submitted
  CudaStream stream_ = nullptr;  // fixed once submitted; null: on a CPU
  std::string who_;
  std::string what_;

  Mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<GpuEvent> ready_ GUARDED_BY(mutex_);
  // Copies of the pieces, contiguous.
  std::shared_ptr<char> copy_ GUARDED_BY(mutex_);
  bool begun_ GUARDED_BY(mutex_) = false;
  bool released_ GUARDED_BY(mutex_) = false;
  bool told_ GUARDED_BY(mutex_) = false;
  // Final once told_ is set.
  Status status_ GUARDED_BY(mutex_);
  std::shared_ptr<GpuEvent> enqueued_ GUARDED_BY(mutex_);
  // The step continues, on the device.
  bool handed_over_ GUARDED_BY(mutex_) = false;
  std::optional<Deadline> left_by_ GUARDED_BY(mutex_);
  CompiledCalls::Ended later_ GUARDED_BY(mutex_);
};

}  // namespace tf_hvd

#endif  // TF_HVD_KERNELS_XLA_STARTED_CALL_H_
