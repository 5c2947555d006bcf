// CompletionThread: fires completions while another thread continues to move
// data. A completion wakes threads of TensorFlow and makes a step's next nodes
// ready. With a model's gradients that takes hundreds of microseconds, in which
// no data would move.
//
// Add and Stop: one thread. The completions run on the thread that this starts
// when it is first needed.
#ifndef TF_HVD_RUNTIME_EXECUTION_COMPLETION_THREAD_H_
#define TF_HVD_RUNTIME_EXECUTION_COMPLETION_THREAD_H_

#include <condition_variable>
#include <functional>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "runtime/execution/cycle.h"

namespace tf_hvd {

class CompletionThread {
 public:
  static constexpr char kThreadName[] = "tf_hvd_done";

  // `fire` is called on the thread, with everything added since the last call,
  // in that order.
  explicit CompletionThread(
      std::function<void(std::vector<Outcome> outcomes)> fire)
      : fire_(std::move(fire)) {}
  ~CompletionThread() { Stop(); }

  void Add(std::vector<Outcome> outcomes);

  // Returns when all have been fired. Nothing may be added after that.
  void Stop();

 private:
  void Loop();

  const std::function<void(std::vector<Outcome> outcomes)> fire_;
  Mutex mutex_;
  std::condition_variable changed_;
  std::vector<Outcome> outcomes_ GUARDED_BY(mutex_);
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_EXECUTION_COMPLETION_THREAD_H_
