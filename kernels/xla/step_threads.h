// StepThreads: run the parts of a compiled step that depend on a call's end.
// XLA runs all work that the end makes ready, perhaps the whole rest of the
// step, on the thread that reports the end. The runtime's threads must not be
// held up by that: they move data and answer other ranks.
//
// At most one thread per core that this process may use, each started when
// first needed, configured like XLA's own compute threads. Their work never
// waits for other work that they run.
#ifndef TF_HVD_KERNELS_XLA_STEP_THREADS_H_
#define TF_HVD_KERNELS_XLA_STEP_THREADS_H_

#include <functional>
#include <memory>

namespace tf_hvd {

class StepThreads {
 public:
  static constexpr char kThreadName[] = "tf_hvd_step";

  StepThreads();
  // Submitted work still runs, but is not waited for.
  ~StepThreads();

  StepThreads(const StepThreads&) = delete;
  StepThreads& operator=(const StepThreads&) = delete;

  // Any thread; never waits. If no thread can be started, the work runs on the
  // calling thread.
  void Run(std::function<void()> work);

 private:
  struct Shared;
  static void Loop(const std::shared_ptr<Shared>& shared);

  const std::shared_ptr<Shared> shared_;
};

}  // namespace tf_hvd

#endif  // TF_HVD_KERNELS_XLA_STEP_THREADS_H_
