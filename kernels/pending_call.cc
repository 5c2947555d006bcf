#include "kernels/pending_call.h"

#include <utility>

#include "kernels/tf_adapters.h"

namespace tf_hvd {

void PendingCall::Watch(const std::shared_ptr<PendingCall>& call) {
  tf::CancellationManager* const manager = call->ctx_->cancellation_manager();
  if (manager == nullptr) return;
  call->token_ = manager->get_cancellation_token();
  // From here on the context may be gone at any time.
  const bool registered =
      manager->RegisterCallback(call->token_, [call] { call->Cancel(); });
  if (!registered) call->Cancel();  // it is already being cancelled
}

void PendingCall::End(const Status& status, int32_t value,
                      const std::function<Status(int32_t value)>& finish) {
  if (!caller_->Answer()) return;
  if (tf::CancellationManager* const manager = ctx_->cancellation_manager()) {
    // False if Cancel is about to be called, which will find the call answered.
    manager->TryDeregisterCallback(token_);
  }
  const bool finishes = status.ok() && finish != nullptr;
  Tell(ToTensorFlow(finishes ? finish(value) : status));
}

void PendingCall::Cancel() {
  if (!caller_->GiveUp()) return;
  Tell(Derived(absl::CancelledError(
      title_ +
      " was abandoned because its step failed or was cancelled. It still "
      "completes for the other ranks")));
}

void PendingCall::Tell(const absl::Status& status) {
  if (!status.ok()) ctx_->SetStatus(status);
  // Nothing of TensorFlow's is kept after this.
  const Done done = std::exchange(done_, nullptr);
  ctx_ = nullptr;
  done();
}

}  // namespace tf_hvd
