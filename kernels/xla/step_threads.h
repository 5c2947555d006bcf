// StepThreads: what XLA goes on with a compiled step on. XLA runs whatever a
// call's end has made ready, perhaps all the rest of the step, on the thread
// that tells it of that end. The runtime's threads move data and answer other
// ranks, and must not be kept by that.
//
// As many threads as this process may use cores, each started when it is needed
// for the first time, which compute as XLA's own do. What they run never waits
// for anything else that they run.
#ifndef TF_HVD_KERNELS_XLA_STEP_THREADS_H_
#define TF_HVD_KERNELS_XLA_STEP_THREADS_H_

#include <functional>
#include <memory>

namespace tf_hvd {

class StepThreads {
 public:
  static constexpr char kThreadName[] = "tf_hvd_step";

  StepThreads();
  // What has been handed in is still run, and not waited for.
  ~StepThreads();

  StepThreads(const StepThreads&) = delete;
  StepThreads& operator=(const StepThreads&) = delete;

  // Any thread; never waits. Where there is no room for a thread the work runs
  // here.
  void Run(std::function<void()> work);

 private:
  struct Shared;
  static void Loop(const std::shared_ptr<Shared>& shared);

  const std::shared_ptr<Shared> shared_;
};

}  // namespace tf_hvd

#endif  // TF_HVD_KERNELS_XLA_STEP_THREADS_H_
