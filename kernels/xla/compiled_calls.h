// CompiledCalls: the collectives of a step compiled by XLA. XLA runs each in
// two parts: the start hands the request to the runtime, the end waits for it,
// and computation that does not depend on the result runs in between.
//
// On a GPU, XLA's stream waits instead: the end returns once the remaining work
// is enqueued on a stream of the device.
//
// Independent of TensorFlow and XLA: tf_hvd's XLA part is a separate library,
// which gets this as a table of functions (xla_library.h).
#ifndef TF_HVD_KERNELS_XLA_COMPILED_CALLS_H_
#define TF_HVD_KERNELS_XLA_COMPILED_CALLS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "kernels/xla/compiled_call.h"

namespace tf_hvd {

class Runtime;

// XLA's memory, until the end of the call.
struct Buffer {
  void* data = nullptr;
  int64_t count = 0;  // of elements
};

struct Started {
  // Made by EncodeCall. It outlives the call.
  std::string_view call;
  // Iteration of the loop that contains the call; -1: not in a loop.
  int64_t iteration = -1;
  std::vector<Buffer> tensors;
  std::vector<Buffer> outputs;  // one for each tensor, if HasOutputs
  int64_t step = -1;            // see Entry::step
  int64_t sources = 0;          // the list's number in TheSources(); 0: no list
  // By this the end finds the call: memory that nothing else uses in between.
  const void* ticket = nullptr;
  // XLA's stream, of the GPU that has the buffers; null: host memory.
  void* stream = nullptr;
};

// Any thread.
class CompiledCalls {
 public:
  using Ended = std::function<void(const Status& status)>;

  virtual ~CompiledCalls() = default;

  // XLA starts to compile `step`.
  virtual void NoteCompilation(const std::string& step) = 0;

  // Never waits for other ranks. An error of the call is reported at its end.
  virtual void Start(const Started& started) = 0;

  // `ended` is called once, with no lock held: either before this returns, or
  // on one of StepThreads, which run the work that depends on the call's
  // result.
  virtual void End(const void* ticket, Ended ended) = 0;

  // On a GPU: makes the stream wait for the result. Blocks until all ranks have
  // made the call and only the device has work left.
  virtual Status EndOn(void* stream, const void* ticket) = 0;

  // One of the job's numbers, as HorovodSize and similar ops return. With a
  // stream, the value is in the device's memory.
  virtual Status Number(std::string_view which, int32_t set, void* stream,
                        int32_t* value) = 0;

  // HorovodFingerprints of one tensor.
  virtual int64_t Fingerprint(const void* data, size_t bytes) = 0;

  // HorovodVerdict. `verdict` comes from EncodeVerdict.
  virtual Status Verdict(std::string_view verdict, const bool* wrong,
                         size_t count, bool* passed) = 0;

  // The ranks of a set, for the shapes of gathered results; an error if this
  // rank is not a member.
  virtual Status Ranks(int32_t set, int64_t* ranks, int64_t* place) = 0;
};

// Finds the runtime to call; see FindDefaultRuntime.
using RuntimeFinder = std::function<Status(std::shared_ptr<Runtime>* runtime)>;

std::unique_ptr<CompiledCalls> MakeCompiledCalls(RuntimeFinder find_runtime);

// The instance for the default runtime. It is never destroyed.
CompiledCalls* DefaultCompiledCalls();

}  // namespace tf_hvd

#endif  // TF_HVD_KERNELS_XLA_COMPILED_CALLS_H_
