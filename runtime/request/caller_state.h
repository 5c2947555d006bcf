// CallerState: the bond between a request and whoever waits for it. A caller
// may go before its request has ended, as a step of TensorFlow's does that has
// failed elsewhere. The request is then detached: it stays in the runtime,
// takes part as it would have, so that no other rank is disturbed, and its
// result is dropped.
//
// Any thread. Of GiveUp and Answer exactly one call is ever true, and whoever
// got it tells the caller.
#ifndef TF_HVD_RUNTIME_REQUEST_CALLER_STATE_H_
#define TF_HVD_RUNTIME_REQUEST_CALLER_STATE_H_

#include <atomic>
#include <functional>
#include <mutex>

namespace tf_hvd {

class CallerState {
 public:
  // The caller goes without a result.
  bool GiveUp() { return Take(State::kGone); }

  // The request has ended, and the caller gets the result.
  bool Answer() { return Take(State::kAnswered); }

  // True once it has given up.
  bool gone() const { return state_ == State::kGone; }

  // Calls `use` if the caller is still waiting, which does not end meanwhile.
  // For what belongs to the caller and is not the request's to keep. `use` must
  // not call back.
  bool WhileWaiting(const std::function<void()>& use) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (state_ != State::kWaiting) return false;
    use();
    return true;
  }

 private:
  enum class State { kWaiting, kAnswered, kGone };

  bool Take(State end) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (state_ != State::kWaiting) return false;
    state_ = end;
    return true;
  }

  std::mutex mutex_;  // held by what changes state_, and by WhileWaiting
  std::atomic<State> state_{State::kWaiting};
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_REQUEST_CALLER_STATE_H_
