// StartedCall: a collective of a compiled step, from its start until the
// runtime has let go of its memory, which is XLA's. XLA takes it back as soon
// as the step fails, wherever that is: a call that has not begun by then goes
// on with a copy, since the other ranks count on it, and one that has is waited
// for.
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
  // On a GPU. `who`, `what`: for an error that comes when the step has gone on.
  void UseOn(CudaStream stream, std::shared_ptr<GpuEvent> ready,
             std::string who, std::string what);

  // Where a piece is now, and on a GPU after what it may be used.
  void* Where(void* piece);
  std::shared_ptr<GpuEvent> Ready();

  // EntryListener
  void Begins(Entry* entry) override;
  void Enqueued(std::shared_ptr<GpuEvent> event) override;

  // The request has ended.
  void Complete(const Status& status);
  // The runtime does not touch the memory any more.
  void Release();

  // Once. How the request has ended; nothing if it has not: then `later` is
  // called with it, by whoever ends it.
  std::optional<Status> Await(CompiledCalls::Ended later);
  // Waits until the request has ended, with null then, or its rest lies on a
  // device's stream.
  Status AwaitOnDevice(std::shared_ptr<GpuEvent>* event);

  // The step has failed: sees to it that XLA's memory is not used any more, as
  // far as that is possible by `deadline`, that of the first such call. Whoever
  // awaits the call, or does so later, gets `status`, if it has not ended.
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
  // Of the pieces, one behind the other.
  std::shared_ptr<char> copy_ GUARDED_BY(mutex_);
  bool begun_ GUARDED_BY(mutex_) = false;
  bool released_ GUARDED_BY(mutex_) = false;
  bool told_ GUARDED_BY(mutex_) = false;
  // Final once told_ is set.
  Status status_ GUARDED_BY(mutex_);
  std::shared_ptr<GpuEvent> enqueued_ GUARDED_BY(mutex_);
  // The step goes on, on the device.
  bool handed_over_ GUARDED_BY(mutex_) = false;
  std::optional<Deadline> left_by_ GUARDED_BY(mutex_);
  CompiledCalls::Ended later_ GUARDED_BY(mutex_);
};

}  // namespace tf_hvd

#endif  // TF_HVD_KERNELS_XLA_STARTED_CALL_H_
