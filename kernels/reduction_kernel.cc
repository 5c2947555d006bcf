#include "kernels/reduction_kernel.h"

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/buffer_ops.h"
#include "kernels/tf_adapters.h"

namespace tf_hvd {

ReductionKernel::ReductionKernel(tf::OpKernelConstruction* ctx, OpKind kind)
    : CollectiveKernel(ctx, kind) {
  int reduce_op = 0;
  float prescale = 1.0f;
  float postscale = 1.0f;
  tf::DataType dtype = tf::DT_INVALID;
  OP_REQUIRES_OK(ctx, ctx->GetAttr("reduce_op", &reduce_op));
  OP_REQUIRES_OK(ctx, ctx->GetAttr("prescale_factor", &prescale));
  OP_REQUIRES_OK(ctx, ctx->GetAttr("postscale_factor", &postscale));
  std::vector<int64_t> exact;
  OP_REQUIRES_OK(ctx, ctx->GetAttr("exact_factors", &exact));
  OP_REQUIRES_OK(ctx, ctx->GetAttr("compression", &compression_));
  OP_REQUIRES_OK(ctx, ctx->GetAttr("T", &dtype));
  prescale_ = prescale;
  postscale_ = postscale;
  if (exact.size() == 2) {
    std::memcpy(&prescale_, &exact[0], sizeof(prescale_));
    std::memcpy(&postscale_, &exact[1], sizeof(postscale_));
  }
  // Not an error of the construction: the other ranks would wait for a call
  // that never comes.
  valid_ = Validate(reduce_op, dtype);
  if (exact.size() != 2 && !exact.empty()) {
    valid_ = InvalidArgument("exact_factors has two numbers, or none");
  }
}

Status ReductionKernel::Validate(int reduce_op, tf::DataType dtype) {
  constexpr int kLast = static_cast<int>(ReduceOp::kProduct);
  if (reduce_op < 0 || reduce_op > kLast) {
    return InvalidArgument("there is no reduce_op " +
                           std::to_string(reduce_op) +
                           "; pass Average, Sum, Adasum, Min, Max or Product");
  }
  reduce_op_ = static_cast<ReduceOp>(reduce_op);
  DType type;
  TF_HVD_RETURN_IF_ERROR(ToDType(dtype, &type));
  const bool adasum = reduce_op_ == ReduceOp::kAdasum;
  if (adasum && kind() == OpKind::kReducescatter) {
    return InvalidArgument(
        "Adasum needs whole vectors; pass Average or Sum, or take allreduce");
  }
  if (!(adasum ? IsFloating(type) : IsReducible(type, reduce_op_))) {
    return InvalidArgument(std::string("cannot compute ") + NameOf(reduce_op_) +
                           " of " + NameOf(type) +
                           "; cast the tensor or take another operation");
  }
  return Status::Ok();
}

Status ReductionKernel::FillEntry(Call* call) {
  TF_HVD_RETURN_IF_ERROR(valid_);
  Request& request = call->entry.request;
  request.reduce_op = reduce_op_;
  request.prescale = prescale_;
  request.postscale = postscale_;
  request.compression = compression_;
  for (int i = 0; i < TensorCount(*call); ++i) {
    TF_HVD_RETURN_IF_ERROR(AddReduced(call, i));
  }
  return Status::Ok();
}

}  // namespace tf_hvd
