// Operation and Backend: the contract under which tensors move (data-plane
// contract, docs/adr/0009). An operation is one collective on its way; a
// backend is one way to move data. Operations are started and polled: nothing
// here waits.
//
// All members are called by the holder of the progress lock only. The ranks of
// a set make the same operations of it in the same order; operations that are
// under way at the same time may end in any.
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

// What is to be done, in the words of one rank. `kind` says what the members
// mean. Lists of numbers have one for each rank of the set, in their order.
// Several tensors are several spans, which are seen as one run: a group of them
// is one operation.
//
// kAllreduce: all `spans`, seen as one run of elements, are reduced as `reduce`
//   says. Each element of the result is reduced in one order, wherever it
//   lies: how requests are fused does not change a bit. That is the order of
//   `ranks`; across nodes first of each node, then of the nodes. Half
//   precisions are summed in float32 and rounded once, and before they cross.
//   Average divides by the number of ranks. Scales of integers: in float64,
//   then truncated toward zero.
// kBroadcast: the inputs of `spans`, in bytes, of the rank at place `root` go
//   to the outputs on all ranks; the others' inputs are not looked at.
// kAllgather: `spans`, in bytes, are as many for each rank, in the ranks'
// order:
//   what that rank gives, from its inputs to the outputs on all ranks. The
//   inputs of other ranks' spans are not looked at.
// kReducescatter: `spans` are as many for each rank, in the ranks' order: what
//   is reduced for that rank, from the inputs of all to its outputs. The
//   outputs of other ranks' spans are not looked at. Inputs and outputs do not
//   overlap.
// kAlltoall: `send[i]` bytes of `input` go to the i-th rank, `receive[i]` come
//   from there and are laid out at `output`. They do not overlap.
struct OperationSpec {
  OpKind kind = OpKind::kAllreduce;
  SetMembers ranks;  // in order; holds this rank
  int32_t set = 0;
  // Of this operation among those of the set: on all ranks the same.
  uint64_t number = 0;
  Memory memory;
  ReduceOptions reduce;
  // What is reduced on a device, if its elements lie in memory as another type
  // than reduce.dtype: they are cast on the way there, and back. float32 as a
  // half precision. Of one rank alone: others may have cast theirs themselves.
  std::optional<DType> stored;
  std::vector<Span> spans;  // all kinds but alltoall
  size_t root = 0;
  // kBroadcast: this is one of so many alike, one after the other.
  uint64_t of_pieces = 1;
  const void* input = nullptr;  // alltoall
  void* output = nullptr;
  std::vector<int64_t> send;
  std::vector<int64_t> receive;
};

// Whether the spans are as many for each rank, in the ranks' order.
inline bool ListsRanks(OpKind kind) {
  return YieldOf(kind) == Yield::kAllRows || YieldOf(kind) == Yield::kOwnRows;
}

// Whether the rank at `place` has inputs that count: of an operation that has a
// root and reduces nothing, the root's alone do.
inline bool Gives(const OperationSpec& spec, size_t place) {
  return Reduces(spec.kind) || !Has(spec.kind, kHasRoot) || place == spec.root;
}

// The type that the elements of an operation that reduces have in memory.
inline DType StoredType(const OperationSpec& spec) {
  return spec.stored.value_or(spec.reduce.dtype);
}

// How a look at an operation found it.
struct Poll {
  bool done = false;
  bool moved = false;  // a message came or went, a piece of work was done
  int awaited = -1;    // the rank whose data is waited for; -1: none is
  // All of the operation lies on a device's stream: this fires when it is done.
  std::shared_ptr<GpuEvent> enqueued;
  // The doorbell rings when it is done: nobody has to look all the time.
  bool rings = false;
  // This rank's device is still at work on what the operation is given.
  bool computing = false;
  // How much of it is done on this rank, as far as that is known: 0 to 1.
  double part = 0;
  // Is told what was done, and when that was over; null: nobody asks.
  PhaseTimer* phases = nullptr;

  // Something was done, now.
  void Did(Phase phase, int64_t now_ns) {
    moved = true;
    if (phases != nullptr) phases->Did(phase, now_ns);
  }
};

class Operation {
 public:
  virtual ~Operation() = default;

  // Moves on for at most about `budget_ns`, or as far as it goes without
  // waiting. After an error it is never called again, and the data of the
  // ranks is out of step: the job must end.
  virtual Status Progress(int64_t budget_ns, Poll* poll) = 0;

  // Lets go of what is under way; called before an operation that has not
  // ended is destroyed. False if something may still write to its memory: it
  // must stay then, for ever, and all that it was given.
  virtual bool Abandon() = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;

  // How it moves data, in up to 7 letters.
  virtual std::string_view name() const = 0;

  // Pure, and equal on all ranks of the set.
  virtual bool Serves(const OperationSpec& spec) const = 0;

  // Makes the operation; it starts with its first Progress. Called in the
  // agreed order.
  virtual Status Make(OperationSpec spec,
                      std::unique_ptr<Operation>* operation) = 0;

  // The most operations that may be under way at once.
  virtual size_t window() const = 0;

  // A process set comes, or goes: on all ranks, members or not, in the agreed
  // order among what is made. Of one that goes operations may still be under
  // way; none is made any more. The set of all ranks is there from the start.
  virtual Status SetAdded(int32_t /*set*/, const std::vector<int>& /*ranks*/) {
    return Status::Ok();
  }
  virtual void SetRemoved(int32_t /*set*/) {}
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_CONTRACT_OPERATION_H_
