// DataTransport: moves and reduces the tensors of requests that have been put
// in order. It takes lists of spans and never one packed buffer: packing is
// the copy into whatever the transport needs anyway.
//
// All members are called by the holder of the helm only, for the same
// operations in the same order on all ranks of `ranks`. They return when the
// result is there; while they wait they call `pump` at least every 200 us.
// A call that fails leaves the streams between ranks out of step: its caller
// must abort the job.
#ifndef TF_HVD_RUNTIME_TRANSPORT_DATA_TRANSPORT_H_
#define TF_HVD_RUNTIME_TRANSPORT_DATA_TRANSPORT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "runtime/status.h"
#include "runtime/types.h"

namespace tf_hvd {

// `input` is read, `output` is written; they may be equal. A null `input`
// stands for zeros (a rank that has joined), a null `output` for nowhere.
struct Span {
  const void* input = nullptr;
  void* output = nullptr;
  int64_t count = 0;  // elements
};

struct ReduceOptions {
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  double prescale = 1.0;   // on each input, before the reduction
  double postscale = 1.0;  // on the result
  double divisor = 1.0;    // of the result; see StoreAccumulator
};

// Keeps the agreement moving and says whether the job still stands. Not ok: the
// wait ends with that Status.
using Pump = std::function<Status()>;

// How the call in progress, or the last one, is getting on.
struct Progress {
  uint64_t moved = 0;  // grows with each message and each piece of work
  int awaited = -1;    // the rank whose message is waited for; -1: none is
};

class DataTransport {
 public:
  virtual ~DataTransport() = default;

  // Each element of the result is reduced in the order of `ranks`, wherever
  // it lies in the list of spans: how requests are fused does not change a
  // bit. Half precisions are summed in float32 and rounded once. Average
  // divides by the number of ranks. Scales of integers: in float64, then
  // truncated toward zero. `ranks` is sorted and holds this rank.
  virtual Status Allreduce(const std::vector<int>& ranks,
                           const std::vector<Span>& spans,
                           const ReduceOptions& options, const Pump& pump) = 0;

  // Each rank gives `mine` bytes; `bytes[i]` is what ranks[i] gives. The
  // result is laid out in the order of `ranks` at `output`.
  virtual Status Allgather(const std::vector<int>& ranks, const void* mine,
                           const std::vector<int64_t>& bytes, void* output,
                           const Pump& pump) = 0;

  // `data` of `root` (a member of `ranks`) to all. On the root `data` is read.
  virtual Status Broadcast(const std::vector<int>& ranks, int root, void* data,
                           int64_t bytes, const Pump& pump) = 0;

  // The elements of all ranks' inputs are reduced as by Allreduce, and ranks[i]
  // gets `counts[i]` of them, in the order of `ranks`. `input` and `output` do
  // not overlap.
  virtual Status Reducescatter(const std::vector<int>& ranks, const void* input,
                               const std::vector<int64_t>& counts, void* output,
                               const ReduceOptions& options,
                               const Pump& pump) = 0;

  // `send_bytes[i]` of `input`, in the order of `ranks`, go to ranks[i];
  // `receive_bytes[i]` come from there and are laid out at `output` in the same
  // order. They do not overlap.
  virtual Status Alltoall(const std::vector<int>& ranks, const void* input,
                          const std::vector<int64_t>& send_bytes, void* output,
                          const std::vector<int64_t>& receive_bytes,
                          const Pump& pump) = 0;

  virtual Progress progress() const { return {}; }

  // True if an earlier call ended early and its memory may still be touched.
  virtual bool memory_in_use() const = 0;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_DATA_TRANSPORT_H_
