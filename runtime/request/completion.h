// Completion: the promise that a caller is told the outcome of its request
// exactly once. One that is dropped without having been fired completes with
// an error, so that no caller can wait for ever on a request that got lost.
//
// Fire() is called without the progress lock (a callback may submit again), by
// whoever had it, or by the completion thread; the callback may therefore run
// on any thread.
#ifndef TF_HVD_RUNTIME_REQUEST_COMPLETION_H_
#define TF_HVD_RUNTIME_REQUEST_COMPLETION_H_

#include <cstdint>
#include <functional>
#include <utility>

#include "runtime/base/status.h"

namespace tf_hvd {

class Completion {
 public:
  // `value` is the result of requests that have one: the last rank for join,
  // the number of the new set for add_process_set. 0 otherwise.
  using Callback = std::function<void(const Status& status, int32_t value)>;

  Completion() = default;
  explicit Completion(Callback callback) : callback_(std::move(callback)) {}
  Completion(Completion&& other) noexcept { *this = std::move(other); }
  Completion& operator=(Completion&& other) noexcept {
    if (this != &other) {
      Drop();
      callback_ = std::exchange(other.callback_, nullptr);
    }
    return *this;
  }
  Completion(const Completion&) = delete;
  Completion& operator=(const Completion&) = delete;
  ~Completion() { Drop(); }

  // True until fired or moved from.
  bool pending() const { return callback_ != nullptr; }

  // A second call does nothing.
  void Fire(const Status& status, int32_t value = 0) {
    if (const Callback callback = std::exchange(callback_, nullptr)) {
      callback(status, value);
    }
  }

 private:
  void Drop() {
    if (pending()) Fire(Internal("bug in tf_hvd: a request was dropped"));
  }

  Callback callback_;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_REQUEST_COMPLETION_H_
