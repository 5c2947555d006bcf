#include "runtime/transport/gpu/device_bell.h"

#include <list>

#include "base/mutex.h"

namespace tf_hvd {

struct DeviceBell::State {
  explicit State(Doorbell* rung) : doorbell(rung) {}

  Mutex mutex;
  Doorbell* doorbell GUARDED_BY(mutex);

  static State* New(Doorbell* doorbell) {
    static Mutex mutex;
    static auto* const all PT_GUARDED_BY(mutex) = new std::list<State>;
    const MutexLock lock(&mutex);
    return &all->emplace_back(doorbell);
  }
};

DeviceBell::DeviceBell(Doorbell* doorbell) : state_(State::New(doorbell)) {}

HostFunction DeviceBell::ring() const {
  return {[](void* data) {
            auto* const state = static_cast<State*>(data);
            const MutexLock lock(&state->mutex);
            // Rings whether or not the rank sleeps, because it may be about to:
            // it then polls once more.
            if (state->doorbell != nullptr) state->doorbell->Ring();
          },
          state_};
}

DeviceBell::~DeviceBell() {
  const MutexLock lock(&state_->mutex);
  state_->doorbell = nullptr;
}

}  // namespace tf_hvd
