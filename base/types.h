// The tables of element types, reduce operations and kinds of collectives. The
// numbers are sent between ranks and appear as op attributes: never renumber
// them.
#ifndef TF_HVD_BASE_TYPES_H_
#define TF_HVD_BASE_TYPES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tf_hvd {

// 0 to 9 as in Horovod, then tf_hvd's additions.
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
inline constexpr int kReduceOpCount = 6;

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
inline constexpr int kOpKindCount = 9;

// The result of a collective on one rank, for each tensor.
enum class Yield : uint8_t {
  kNothing,   // there are no tensors
  kWhole,     // as many elements as the tensor has
  kOwnRows,   // its share of the tensor's rows, ScatteredRows
  kAllRows,   // the rows of all ranks, which may have different numbers of rows
  kSentRows,  // the rows that each rank sends to this one, any number
};

enum OpTrait : unsigned {
  kReducesElements = 1,  // kinds without it move bytes
  kHasRoot = 2,
  kRunsAfterJoin = 4,  // a rank that has joined contributes zeros, or no rows
  kHasGroups = 8,      // TensorFlow has an op for groups of tensors as well
};

struct OpKindRow {
  const char* name;
  Yield yield;
  unsigned traits;  // bits of OpTrait
};

// In the order of the enumeration. A test compares it with
// tf_hvd/core/kinds.py, which has no kRunsAfterJoin.
inline constexpr std::array<OpKindRow, kOpKindCount> kOpKinds = {{
    {"allreduce", Yield::kWhole,
     kReducesElements | kRunsAfterJoin | kHasGroups},
    {"allgather", Yield::kAllRows, kRunsAfterJoin | kHasGroups},
    {"broadcast", Yield::kWhole, kHasRoot},
    {"join", Yield::kNothing, kRunsAfterJoin},
    {"barrier", Yield::kNothing, kRunsAfterJoin},
    {"add_process_set", Yield::kNothing, kRunsAfterJoin},
    {"remove_process_set", Yield::kNothing, kRunsAfterJoin},
    {"alltoall", Yield::kSentRows, 0},
    {"reducescatter", Yield::kOwnRows, kReducesElements | kHasGroups},
}};

// A kind received from another rank may be any number.
inline constexpr OpKindRow kUnknownKind = {"?", Yield::kNothing,
                                           kRunsAfterJoin};

constexpr const OpKindRow& RowOf(OpKind kind) {
  const auto index = static_cast<size_t>(kind);
  return index < kOpKinds.size() ? kOpKinds[index] : kUnknownKind;
}

constexpr Yield YieldOf(OpKind kind) { return RowOf(kind).yield; }
constexpr bool Has(OpKind kind, OpTrait trait) {
  return (RowOf(kind).traits & trait) != 0;
}

// True if elements are reduced; sizes are then counted in elements, not bytes.
constexpr bool Reduces(OpKind kind) { return Has(kind, kReducesElements); }

// True if the number of rows may differ between ranks, which then exchange the
// numbers first.
constexpr bool RowsDiffer(OpKind kind) {
  return YieldOf(kind) == Yield::kAllRows || YieldOf(kind) == Yield::kSentRows;
}

// The kinds that move tensors, in the order of their numbers.
std::vector<OpKind> TensorKinds();

// TensorFlow's ops of such a kind: "HorovodAllreduce" and, for kinds with
// groups, "HorovodGroupedAllreduce".
std::vector<std::string> OpsOf(OpKind kind);

// The process set of all ranks.
inline constexpr int32_t kWorldSet = 0;

// The ranks of a process set, ascending; or the ranks of an operation, in its
// order. All users of a set share one list until the last one releases it: in a
// large job a copy for each call would cost more than the call.
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

// "float32[3,4]"; a dimension of -1, which may differ between ranks, is shown
// as "?".
std::string Describe(DType dtype, const std::vector<int64_t>& shape);

// The product of the dimensions; 1 for a scalar.
int64_t ElementCount(const std::vector<int64_t>& shape);

}  // namespace tf_hvd

#endif  // TF_HVD_BASE_TYPES_H_
