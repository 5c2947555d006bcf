// Request: what is asked of all ranks of a process set under one name, and its
// wire form. A Record holds what must be equal on all of them; what may differ
// (the first dimension of allgather) is not in it.
#ifndef TF_HVD_RUNTIME_REQUEST_H_
#define TF_HVD_RUNTIME_REQUEST_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/status.h"
#include "runtime/types.h"

namespace tf_hvd {

inline constexpr int32_t kWorldSet = 0;

struct TensorSpec {
  DType dtype = DType::kFloat32;
  std::vector<int64_t> shape;  // allgather: shape[0] is -1, it may differ
};

struct Record {
  OpKind kind = OpKind::kAllreduce;
  DeviceKind device = DeviceKind::kCpu;
  ReduceOp reduce_op = ReduceOp::kSum;  // allreduce only
  double prescale = 1.0;                // allreduce only
  double postscale = 1.0;               // allreduce only
  int32_t root = -1;                    // broadcast only: a rank of the world
  int32_t set = 0;                      // remove_process_set only
  std::vector<int32_t> ranks;           // add_process_set only, sorted
  std::vector<TensorSpec> tensors;      // more than one: a group or bucket
};

// Little-endian, the same bytes for equal records: records are compared as
// bytes.
std::string EncodeRecord(const Record& record);
Status DecodeRecord(std::string_view bytes, Record* record);

// The sum of the tensors' sizes in bytes, a dimension of -1 counting as 1.
int64_t TotalBytes(const Record& record);

// The first difference of two records, as a sentence with both sides' values
// and both ranks' numbers, in the order of the checks in docs/errors.md.
std::string DescribeMismatch(std::string_view name, int32_t rank_a,
                             std::string_view record_a, int32_t rank_b,
                             std::string_view record_b);

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_REQUEST_H_
