// The one table of element types and the one of reduce operations. The numbers
// travel on the wire and appear as op attributes: never renumber them.
#ifndef TF_HVD_BASE_TYPES_H_
#define TF_HVD_BASE_TYPES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tf_hvd {

// 0 to 9 as in Horovod, then our own.
enum class DType : uint8_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kInt32 = 4,
  kInt64 = 5,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBool = 9,
  kBfloat16 = 10,
  kUint32 = 11,
  kUint64 = 12,
  kComplex64 = 13,
  kComplex128 = 14,
};
inline constexpr int kDTypeCount = 15;

// Values of the attribute `reduce_op`, as in Horovod.
enum class ReduceOp : uint8_t {
  kAverage = 0,
  kSum = 1,
  kAdasum = 2,  // allreduce of floating types only
  kMin = 3,
  kMax = 4,
  kProduct = 5,
};

enum class OpKind : uint8_t {
  kAllreduce = 0,
  kAllgather = 1,
  kBroadcast = 2,
  kJoin = 3,
  kBarrier = 4,
  kAddSet = 5,
  kRemoveSet = 6,
  kAlltoall = 7,
  kReducescatter = 8,
};

// The process set of all ranks.
inline constexpr int32_t kWorldSet = 0;

// The ranks of a process set, ascending; or those of an operation, in its
// order. One list for all who speak of the set, from when it is added until
// nobody does any more: in a large job a copy for each call would cost more
// than the call.
using SetMembers = std::shared_ptr<const std::vector<int>>;

inline SetMembers MembersOf(std::vector<int> ranks) {
  return std::make_shared<const std::vector<int>>(std::move(ranks));
}

enum class DeviceKind : uint8_t { kCpu = 0, kGpu = 1 };

size_t SizeOf(DType dtype);
bool IsFloating(DType dtype);  // real numbers
bool IsComplex(DType dtype);
const char* NameOf(DType dtype);      // "float32"; "?" for an unknown value
const char* NameOf(ReduceOp op);      // "Average"
const char* NameOf(OpKind kind);      // "allreduce"
const char* NameOf(DeviceKind kind);  // "CPU"

// "float32[3,4]"; a dimension of -1, which may differ between ranks, is "?".
std::string Describe(DType dtype, const std::vector<int64_t>& shape);

// The product of the dimensions; 1 for a scalar.
int64_t ElementCount(const std::vector<int64_t>& shape);

}  // namespace tf_hvd

#endif  // TF_HVD_BASE_TYPES_H_
