// What a call is checked for on this rank before it becomes a request, whether
// TensorFlow's executor makes it or a compiled step. Knows nothing of
// TensorFlow; any thread.
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

// What comes before a call's errors: "allreduce 'g'".
std::string TitleOf(OpKind kind, const std::string& name);

// This rank's part in a process set.
struct Membership {
  size_t ranks = 1;
  size_t place = 0;    // of this rank among them
  SetMembers members;  // null for the world, whose ranks count from 0
};

// Ok if this rank can take part in collectives of `set`. Nobody could be told
// of a failure of this kind: it stays on this rank.
Status FindSet(const Runtime& runtime, int32_t set, Membership* membership);

// The error of a call that names a process set that does not exist.
Status UnknownSet(int32_t set);

// Of broadcast: `root` is a rank of the world, and must be a member.
Status CheckRoot(int32_t root, int32_t set, const Membership& membership);

// Of what reduces: whether the operation is possible for the type that travels.
Status CheckReducible(OpKind kind, ReduceOp reduce_op, DType type);

// Of alltoall: rows for each rank if the caller did not say.
Status EvenSplits(int64_t rows, size_t ranks, std::vector<int64_t>* splits);

}  // namespace tf_hvd

#endif  // TF_HVD_KERNELS_LOCAL_CHECKS_H_
