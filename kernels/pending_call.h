// PendingCall: TensorFlow's side of a request: the kernel's context and its
// `done`, until the request has ended or the step is cancelled. Then the call
// is detached: TensorFlow is told at once, so that the step ends with the error
// that it was cancelled for, and the request goes on without it.
//
// Any thread. TensorFlow is told exactly once.
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

  // `title` is for the text that a cancelled call ends with. `done` has not
  // been called, and the context lives until it is.
  PendingCall(std::string title, tf::OpKernelContext* ctx, Done done)
      : title_(std::move(title)), ctx_(ctx), done_(std::move(done)) {}

  // The context may be touched inside CallerState::WhileWaiting only, once
  // Watch was called.
  const std::shared_ptr<CallerState>& caller() const { return caller_; }

  // Detaches the call when its step is cancelled. To be called once.
  static void Watch(const std::shared_ptr<PendingCall>& call);

  // The request has ended. `finish`, if any, is what is left to do when it has
  // succeeded; it may touch the context. Neither that nor anything else
  // happens if the call was detached.
  void End(const Status& status, int32_t value,
           const std::function<Status(int32_t value)>& finish);

 private:
  void Cancel();
  void Tell(const absl::Status& status);

  const std::shared_ptr<CallerState> caller_ = std::make_shared<CallerState>();
  const std::string title_;
  // Of whoever ends the call.
  tf::OpKernelContext* ctx_;
  Done done_;
  tf::CancellationToken token_ = 0;
};

}  // namespace tf_hvd

#endif  // TF_HVD_KERNELS_PENDING_CALL_H_
