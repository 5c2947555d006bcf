// Operation and Backend: the contract for moving tensors (data-plane contract,
// docs/adr/0009). An operation is one collective in progress; a backend is one
// method of moving data. Operations are started and polled; nothing here
// blocks.
//
// All members are called only by the holder of the progress lock. The ranks of
// a set make the same operations in the same order; concurrent operations may
// finish in any order.
#ifndef TF_HVD_RUNTIME_CONTRACT_OPERATION_H_
#define TF_HVD_RUNTIME_CONTRACT_OPERATION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "base/memory.h"
#include "base/status.h"
#include "base/types.h"
#include "compute/buffer_ops.h"
#include "runtime/events/phases.h"

namespace tf_hvd {

// One operation, as seen by one rank. The meaning of the members depends on
// `kind`. Lists of numbers have one element for each rank of the set, in the
// set's order. Several tensors are several spans, treated as one run: a group
// of them is one operation.
//
// kAllreduce: all `spans`, treated as one run of elements, are reduced by
//   `reduce`. The order in which an element is reduced does not depend on its
//   place, so fusion does not change a bit of the result. That order is the
//   order of `ranks`; across nodes, first within each node, then over the
//   nodes. Half-precision values are summed in float32 and rounded once, and
//   before they are sent to another node. Average divides by the number of
//   ranks. Scales of integers: in float64, then truncated toward zero.
// kBroadcast: the inputs of `spans`, in bytes, of the rank at place `root` go
//   to the outputs on all ranks; other ranks' inputs are ignored.
// kAllgather: `spans`, in bytes, have the same number for each rank, in the
//   ranks' order: the data of that rank, from its inputs to the outputs on all
//   ranks. The inputs of other ranks' spans are ignored.
// kReducescatter: `spans` have the same number for each rank, in the ranks'
//   order: the data reduced for that rank, from the inputs of all ranks to its
//   outputs. The outputs of other ranks' spans are ignored. Inputs and outputs
//   do not overlap.
// kAlltoall: `send[i]` bytes of `input` go to the i-th rank. `receive[i]` bytes
//   come from that rank and are laid out at `output`. They do not overlap.
struct OperationSpec {
  OpKind kind = OpKind::kAllreduce;
  SetMembers ranks;  // in order; includes this rank
  int32_t set = 0;
  // Number of this operation among those of the set; the same on all ranks.
  uint64_t number = 0;
  Memory memory;
  ReduceOptions reduce;
  // Set if elements reduced on a device are stored in a different type from
  // reduce.dtype, for example float32 reduced in half precision: they are cast
  // before and after. Applies to this rank only; other ranks may have cast
  // theirs themselves.
  std::optional<DType> stored;
  std::vector<Span> spans;  // all kinds but alltoall
  size_t root = 0;
  // kBroadcast: this is one of this many consecutive pieces.
  uint64_t of_pieces = 1;
  const void* input = nullptr;  // alltoall
  void* output = nullptr;
  std::vector<int64_t> send;
  std::vector<int64_t> receive;
};

// Whether the spans have the same number for each rank, in the ranks' order.
inline bool ListsRanks(OpKind kind) {
  return YieldOf(kind) == Yield::kAllRows || YieldOf(kind) == Yield::kOwnRows;
}

// Whether the rank at `place` provides inputs: an operation that has a root and
// reduces nothing reads only the root's.
inline bool Gives(const OperationSpec& spec, size_t place) {
  return Reduces(spec.kind) || !Has(spec.kind, kHasRoot) || place == spec.root;
}

// The type in memory of the elements of an operation that reduces.
inline DType StoredType(const OperationSpec& spec) {
  return spec.stored.value_or(spec.reduce.dtype);
}

// What one Progress call found.
struct Poll {
  bool done = false;
  // A message was sent or received, or a piece of work was done.
  bool moved = false;
  int awaited = -1;  // the rank that this one needs data from; -1: none
  // Set if the whole operation is on a device's stream: fires when it is done.
  std::shared_ptr<GpuEvent> enqueued;
  // The doorbell rings when the operation is done, so polling is unnecessary.
  bool rings = false;
  // This rank's device is still computing the operation's input.
  bool computing = false;
  // The fraction done on this rank, as far as known: 0 to 1.
  double part = 0;
  // Records the phases that ended, and when; null: not recorded.
  PhaseTimer* phases = nullptr;

  // Notes that a phase has just ended.
  void Did(Phase phase, int64_t now_ns) {
    moved = true;
    if (phases != nullptr) phases->Did(phase, now_ns);
  }
};

class Operation {
 public:
  virtual ~Operation() = default;

  // Makes progress for about `budget_ns` at most, or until it would wait. After
  // an error it is never called again, and the ranks' data is out of step: the
  // job must end.
  virtual Status Progress(int64_t budget_ns, Poll* poll) = 0;

  // Releases the work in progress; called before an unfinished operation is
  // destroyed. False if its memory may still be written to: the operation and
  // everything it was given must then be kept until the process exits.
  virtual bool Abandon() = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;

  // The method's name, at most 7 letters.
  virtual std::string_view name() const = 0;

  // Pure, and the same on all ranks of the set.
  virtual bool Serves(const OperationSpec& spec) const = 0;

  // Makes the operation; it starts with its first Progress. Called in the
  // agreed order.
  virtual Status Make(OperationSpec spec,
                      std::unique_ptr<Operation>* operation) = 0;

  // The maximum number of operations in progress at once.
  virtual size_t window() const = 0;

  // A process set is added, or removed: on all ranks, members or not, in the
  // agreed order relative to the operations. Operations of a removed set may
  // still be in progress; no new ones are made. The set of all ranks exists
  // from the start.
  virtual Status SetAdded(int32_t /*set*/, const std::vector<int>& /*ranks*/) {
    return Status::Ok();
  }
  virtual void SetRemoved(int32_t /*set*/) {}
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_CONTRACT_OPERATION_H_
