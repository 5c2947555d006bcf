#include "runtime/transport/mpi/allreduce.h"

#include <optional>
#include <utility>

#include "compute/buffer_ops.h"
#include "runtime/transport/mpi_library/library.h"

namespace tf_hvd {
namespace {

// Half precisions are none of MPI's types, and its logical operations are not
// those of our bool.
std::optional<MpiNumber> NumberOf(DType dtype) {
  switch (dtype) {
    case DType::kUint8:
      return MpiNumber::kUint8;
    case DType::kInt8:
      return MpiNumber::kInt8;
    case DType::kUint16:
      return MpiNumber::kUint16;
    case DType::kInt16:
      return MpiNumber::kInt16;
    case DType::kUint32:
      return MpiNumber::kUint32;
    case DType::kInt32:
      return MpiNumber::kInt32;
    case DType::kUint64:
      return MpiNumber::kUint64;
    case DType::kInt64:
      return MpiNumber::kInt64;
    case DType::kFloat32:
      return MpiNumber::kFloat;
    case DType::kFloat64:
      return MpiNumber::kDouble;
    case DType::kComplex64:
      return MpiNumber::kFloatComplex;
    case DType::kComplex128:
      return MpiNumber::kDoubleComplex;
    default:
      return std::nullopt;
  }
}

std::optional<MpiReduction> ReductionOf(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return MpiReduction::kSum;
    case ReduceOp::kMin:
      return MpiReduction::kMin;
    case ReduceOp::kMax:
      return MpiReduction::kMax;
    case ReduceOp::kProduct:
      return MpiReduction::kProduct;
    default:
      return std::nullopt;
  }
}

class MpiAllreduce final : public Operation {
 public:
  MpiAllreduce(const MpiApi* api, const ReduceOptions& options,
               const Span& span, MpiHandle request)
      : api_(api), options_(options), span_(span), request_(request) {}

  Status Progress(int64_t /*budget_ns*/, Poll* poll) override {
    int done = 0;
    TF_HVD_RETURN_IF_ERROR(MpiResult(
        *api_, "MPI_Test", api_->test(api_->state, &request_, &done, nullptr)));
    if (done == 0) return Status::Ok();
    ended_ = poll->done = poll->moved = true;
    // What MPI does not do. One input is reduced to itself, and then scaled.
    if (options_.postscale != 1.0 || options_.divisor != 1.0) {
      ReduceInputs(options_, {span_.input}, span_.count, span_.output);
    }
    return Status::Ok();
  }

  // MPI has no way to take it back.
  bool Abandon() override { return ended_; }

 private:
  const MpiApi* const api_;
  const ReduceOptions options_;
  const Span span_;
  MpiHandle request_;
  bool ended_ = false;
};

}  // namespace

bool MpiAllreduceBackend::Serves(const OperationSpec& spec) const {
  return spec.kind == OpKind::kAllreduce && spec.set == kWorldSet &&
         spec.reduce.prescale == 1.0 &&
         NumberOf(spec.reduce.dtype).has_value() &&
         ReductionOf(spec.reduce.op).has_value();
}

Status MpiAllreduceBackend::Make(OperationSpec spec,
                                 std::unique_ptr<Operation>* operation) {
  const Span& span = spec.spans[0];
  MpiHandle request{nullptr};
  const int code =
      api_->iallreduce(api_->state, span.output, static_cast<int>(span.count),
                       *NumberOf(spec.reduce.dtype),
                       *ReductionOf(spec.reduce.op), comm_, &request);
  TF_HVD_RETURN_IF_ERROR(MpiResult(*api_, "MPI_Iallreduce", code));
  *operation = std::make_unique<MpiAllreduce>(api_, spec.reduce, span, request);
  return Status::Ok();
}

}  // namespace tf_hvd
