// Request: what is asked of all ranks of a process set under one name, and its
// wire form. A Request holds what must be equal on all of them; what may differ
// (the first dimension of allgather) is not in it.
#ifndef TF_HVD_RUNTIME_REQUEST_REQUEST_H_
#define TF_HVD_RUNTIME_REQUEST_REQUEST_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/base/types.h"

namespace tf_hvd {

// The ranks of a process set, ascending. One list for all who speak of the set,
// from when it is added until nobody does any more: in a large job a copy for
// each call would cost more than the call.
using SetMembers = std::shared_ptr<const std::vector<int>>;

// In the ranks of the barrier that init makes: what ends each set, and what
// stands for the ranks of a set that a communicator gives.
inline constexpr int32_t kSetEnd = -1;
inline constexpr int32_t kCommunicatorSet = -2;

struct TensorSpec {
  DType dtype = DType::kFloat32;
  std::vector<int64_t> shape;  // allgather, alltoall: shape[0] is -1, it may
                               // differ
  std::string name = {};       // of a group's member; empty if not known
};

struct Request {
  OpKind kind = OpKind::kAllreduce;
  DeviceKind device = DeviceKind::kCpu;
  ReduceOp reduce_op = ReduceOp::kSum;  // allreduce, reducescatter
  double prescale = 1.0;                // allreduce, reducescatter
  double postscale = 1.0;               // allreduce, reducescatter
  // How the caller made the tensors smaller, as "fp16 of float32"; empty for
  // not at all. For comparison only.
  std::string compression;
  int32_t root = -1;                // broadcast only: a rank of the world
  int32_t set = 0;                  // remove_process_set only
  std::vector<int32_t> ranks;       // add_process_set: sorted; the barrier of
                                    // init: each set, then kSetEnd
  std::vector<TensorSpec> tensors;  // more than one: a group or bucket
};

// Little-endian, the same bytes for equal requests: requests are compared as
// bytes.
std::string EncodeRequest(const Request& request);
Status DecodeRequest(std::string_view bytes, Request* request);

// Reducescatter of `rows` rows: how many of them the rank at `place` of a set
// of `ranks` gets. What is left over goes to the first ranks, one row each.
int64_t ScatteredRows(int64_t rows, size_t ranks, size_t place);

// The sum of the tensors' sizes in bytes, a dimension of -1 counting as 1.
int64_t TotalBytes(const Request& request);

// The first difference of two requests, as a sentence with both sides' values
// and both ranks' numbers, in the order of the checks in docs/errors.md.
std::string DescribeMismatch(std::string_view name, int32_t rank_a,
                             std::string_view request_a, int32_t rank_b,
                             std::string_view request_b);

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_REQUEST_REQUEST_H_
