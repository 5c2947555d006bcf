// Checks of a call on this rank before it becomes a request, made either by
// TensorFlow's executor or by a compiled step. Independent of TensorFlow; any
// thread.
#ifndef TF_HVD_KERNELS_LOCAL_CHECKS_H_
#define TF_HVD_KERNELS_LOCAL_CHECKS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/types.h"
#include "runtime/api/runtime.h"
#include "runtime/request/entry.h"

namespace tf_hvd {

// The prefix of a call's errors: "allreduce 'g'".
std::string TitleOf(OpKind kind, const std::string& name);

// This rank's membership of a process set.
struct Membership {
  size_t ranks = 1;
  size_t place = 0;    // this rank's index among them
  SetMembers members;  // null for the world, which has ranks 0 to N - 1
};

// Ok if this rank can take part in collectives of `set`. A failure of this kind
// stays on this rank: it cannot be reported to any other.
Status FindSet(const Runtime& runtime, int32_t set, Membership* membership);

// The error for a call on a process set that does not exist.
Status UnknownSet(int32_t set);

// For broadcast: `root` is a rank of the world and must be a member.
Status CheckRoot(int32_t root, int32_t set, const Membership& membership);

// For reductions: whether the operation supports the type that is sent.
Status CheckReducible(OpKind kind, ReduceOp reduce_op, DType type);

// For alltoall: rows for each rank if the caller passed no splits.
Status EvenSplits(int64_t rows, size_t ranks, std::vector<int64_t>* splits);

}  // namespace tf_hvd

#endif  // TF_HVD_KERNELS_LOCAL_CHECKS_H_
