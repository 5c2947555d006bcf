#include "kernels/tf_adapters.h"

#include <string>
#include <utility>

namespace tf_hvd {
namespace {

constexpr std::pair<tf::DataType, DType> kTypes[] = {
    {tf::DT_UINT8, DType::kUint8},
    {tf::DT_INT8, DType::kInt8},
    {tf::DT_UINT16, DType::kUint16},
    {tf::DT_INT16, DType::kInt16},
    {tf::DT_INT32, DType::kInt32},
    {tf::DT_INT64, DType::kInt64},
    {tf::DT_HALF, DType::kFloat16},
    {tf::DT_FLOAT, DType::kFloat32},
    {tf::DT_DOUBLE, DType::kFloat64},
    {tf::DT_BOOL, DType::kBool},
    {tf::DT_BFLOAT16, DType::kBfloat16},
    {tf::DT_UINT32, DType::kUint32},
    {tf::DT_UINT64, DType::kUint64},
    {tf::DT_COMPLEX64, DType::kComplex64},
    {tf::DT_COMPLEX128, DType::kComplex128},
};
static_assert(std::size(kTypes) == kDTypeCount, "one row for each type");

constexpr std::pair<StatusCode, absl::StatusCode> kCodes[] = {
    {StatusCode::kInvalidArgument, absl::StatusCode::kInvalidArgument},
    {StatusCode::kFailedPrecondition, absl::StatusCode::kFailedPrecondition},
    {StatusCode::kAborted, absl::StatusCode::kUnknown},
    {StatusCode::kInternal, absl::StatusCode::kInternal},
};

}  // namespace

Status ToDType(tf::DataType from, DType* to) {
  for (const auto& [tensorflow_type, dtype] : kTypes) {
    if (tensorflow_type == from) {
      *to = dtype;
      return Status::Ok();
    }
  }
  return InvalidArgument(
      "no collective takes tensors of type " + tf::DataTypeString(from) +
      (from == tf::DT_STRING
           ? "; send text as a Python object with broadcast_object or "
             "allgather_object, or encode it as numbers"
           : "; tf.cast them to bool, int8 to int64, uint8 to uint64, float16, "
             "bfloat16, float32, float64, complex64 or complex128, and back"));
}

std::vector<int64_t> ToDims(const tf::TensorShape& shape) {
  std::vector<int64_t> dims(shape.dims());
  for (int i = 0; i < shape.dims(); ++i) dims[i] = shape.dim_size(i);
  return dims;
}

Status ToSpec(const tf::Tensor& tensor, TensorSpec* spec) {
  spec->shape = ToDims(tensor.shape());
  return ToDType(tensor.dtype(), &spec->dtype);
}

absl::Status ToTensorFlow(const Status& status) {
  if (status.ok()) return absl::OkStatus();
  for (const auto& [ours, theirs] : kCodes) {
    if (ours == status.code()) return absl::Status(theirs, status.message());
  }
  return absl::InternalError(status.message());
}

Status FromTensorFlow(const absl::Status& status) {
  if (status.ok()) return Status::Ok();
  for (const auto& [ours, theirs] : kCodes) {
    if (theirs == status.code()) {
      return Status(ours, std::string(status.message()));
    }
  }
  return Aborted(std::string(status.message()));
}

}  // namespace tf_hvd
