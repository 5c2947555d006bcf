// DeviceBell: what a device rings when it has come to the end of an operation,
// so that this rank's background thread may sleep until then.
//
// The driver calls `ring` on a thread of its own, at any time, also when what
// it rings is no longer there: then it does nothing.
#ifndef TF_HVD_RUNTIME_TRANSPORT_GPU_DEVICE_BELL_H_
#define TF_HVD_RUNTIME_TRANSPORT_GPU_DEVICE_BELL_H_

#include <functional>
#include <memory>
#include <mutex>

#include "runtime/transport/doorbell.h"

namespace tf_hvd {

class DeviceBell {
 public:
  // `doorbell`: this rank's own, or null. It outlives this, or Silence.
  explicit DeviceBell(Doorbell* doorbell) : state_(std::make_shared<State>()) {
    state_->doorbell = doorbell;
  }
  ~DeviceBell() { Silence(); }

  DeviceBell(const DeviceBell&) = delete;
  DeviceBell& operator=(const DeviceBell&) = delete;

  // Any thread, at any time.
  std::function<void()> ring() const {
    return [state = state_] {
      const std::lock_guard<std::mutex> lock(state->mutex);
      // Whether the rank sleeps or is about to: it looks once more.
      if (state->doorbell != nullptr) state->doorbell->Ring();
    };
  }

  // From now on it rings nothing.
  void Silence() {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    state_->doorbell = nullptr;
  }

 private:
  struct State {
    std::mutex mutex;
    Doorbell* doorbell = nullptr;  // guarded by mutex
  };
  const std::shared_ptr<State> state_;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_GPU_DEVICE_BELL_H_
