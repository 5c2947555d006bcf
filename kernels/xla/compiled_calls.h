// CompiledCalls: collectives that a step compiled by XLA makes. XLA runs each
// in two parts: its start hands the request to the runtime, its end waits for
// it, and what does not depend on the result is computed in between.
//
// On a GPU XLA's stream waits instead: the end is there as soon as the rest
// lies on a stream of the device.
//
// Knows neither TensorFlow nor XLA: XLA's part of tf_hvd is a library of its
// own, which gets this as a table of functions (xla_library.h).
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

// Memory of XLA's, until the end of the call.
struct Buffer {
  void* data = nullptr;
  int64_t count = 0;  // of elements
};

struct Started {
  // EncodeCall's. It outlives the call.
  std::string_view call;
  // Of the loop that the call is in; -1: in none.
  int64_t iteration = -1;
  std::vector<Buffer> tensors;
  std::vector<Buffer> outputs;  // one for each tensor, if HasOutputs
  int64_t step = -1;            // see Entry::step
  int64_t sources = 0;          // the list's number in TheSources(); 0: none
  // What the end knows the call by: memory that is nobody else's in between.
  const void* ticket = nullptr;
  // XLA's, of the GPU whose memory the buffers are; null: the host's.
  void* stream = nullptr;
};

// Any thread.
class CompiledCalls {
 public:
  using Ended = std::function<void(const Status& status)>;

  virtual ~CompiledCalls() = default;

  // XLA has begun to compile `step`.
  virtual void NoteCompilation(const std::string& step) = 0;

  // Never waits for other ranks. What is wrong with the call is told at its
  // end.
  virtual void Start(const Started& started) = 0;

  // `ended` is called once: before this returns, or on a thread that is there
  // for what the call's end has made ready (StepThreads); with no lock held.
  virtual void End(const void* ticket, Ended ended) = 0;

  // On a GPU: makes the stream wait for the result. Waits itself until all
  // ranks have made the call, and nothing but the device has to do anything.
  virtual Status EndOn(void* stream, const void* ticket) = 0;

  // One of the job's numbers: see HorovodSize and its like. With a stream the
  // value is memory of its device.
  virtual Status Number(std::string_view which, int32_t set, void* stream,
                        int32_t* value) = 0;

  // HorovodFingerprints, of one tensor.
  virtual int64_t Fingerprint(const void* data, size_t bytes) = 0;

  // HorovodVerdict. `verdict`: EncodeVerdict's.
  virtual Status Verdict(std::string_view verdict, const bool* wrong,
                         size_t count, bool* passed) = 0;

  // The ranks of a set, for the shapes of what is gathered; an error if this
  // one is not a member.
  virtual Status Ranks(int32_t set, int64_t* ranks, int64_t* place) = 0;
};

// Gives the runtime that is called; see FindDefaultRuntime.
using RuntimeFinder = std::function<Status(std::shared_ptr<Runtime>* runtime)>;

std::unique_ptr<CompiledCalls> MakeCompiledCalls(RuntimeFinder find_runtime);

// That of the default runtime. It is never destroyed.
CompiledCalls* DefaultCompiledCalls();

}  // namespace tf_hvd

#endif  // TF_HVD_KERNELS_XLA_COMPILED_CALLS_H_
