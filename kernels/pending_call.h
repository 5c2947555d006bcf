// PendingCall: TensorFlow's side of a request. Holds the kernel's context and
// its `done` until the request has ended or the step is cancelled. On
// cancellation the call is detached: TensorFlow is notified at once, so the
// step ends with the error that cancelled it, and the request continues without
// the step.
//
// Any thread. TensorFlow is notified exactly once.
#ifndef TF_HVD_KERNELS_PENDING_CALL_H_
#define TF_HVD_KERNELS_PENDING_CALL_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/status.h"
#include "kernels/tf_compat.h"
#include "runtime/request/entry.h"

namespace tf_hvd {

class PendingCall {
 public:
  using Done = tf::AsyncOpKernel::DoneCallback;

  // `title` is used in the message of a cancelled call. `done` has not been
  // called, and the context lives until it is.
  PendingCall(std::string title, tf::OpKernelContext* ctx, Done done)
      : title_(std::move(title)), ctx_(ctx), done_(std::move(done)) {}

  // Once Watch was called, the context may be touched only inside
  // CallerState::WhileWaiting.
  const std::shared_ptr<CallerState>& caller() const { return caller_; }

  // Detaches the call when its step is cancelled. Call it once.
  static void Watch(const std::shared_ptr<PendingCall>& call);

  // The request has ended. `finish`, if any, is the work left after success; it
  // may touch the context. If the call was detached, nothing happens.
  void End(const Status& status, int32_t value,
           const std::function<Status(int32_t value)>& finish);

 private:
  void Cancel();
  void Tell(const absl::Status& status);

  const std::shared_ptr<CallerState> caller_ = std::make_shared<CallerState>();
  const std::string title_;
  // Used only by the thread that ends the call.
  tf::OpKernelContext* ctx_;
  Done done_;
  tf::CancellationToken token_ = 0;
};

}  // namespace tf_hvd

#endif  // TF_HVD_KERNELS_PENDING_CALL_H_
