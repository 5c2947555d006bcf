#include "kernels/allreduce_kernel.h"

#include <string>

#include "kernels/buffer_ops.h"
#include "kernels/tf_adapters.h"

namespace tf_hvd {

AllreduceKernel::AllreduceKernel(tf::OpKernelConstruction* ctx)
    : CollectiveKernel(ctx, OpKind::kAllreduce) {
  int reduce_op = 0;
  float prescale = 1.0f;
  float postscale = 1.0f;
  tf::DataType dtype = tf::DT_INVALID;
  OP_REQUIRES_OK(ctx, ctx->GetAttr("reduce_op", &reduce_op));
  OP_REQUIRES_OK(ctx, ctx->GetAttr("prescale_factor", &prescale));
  OP_REQUIRES_OK(ctx, ctx->GetAttr("postscale_factor", &postscale));
  OP_REQUIRES_OK(ctx, ctx->GetAttr("T", &dtype));
  prescale_ = prescale;
  postscale_ = postscale;
  // Not an error of the construction: the other ranks would wait for a call
  // that never comes.
  valid_ = Validate(reduce_op, dtype);
}

Status AllreduceKernel::Validate(int reduce_op, tf::DataType dtype) {
  constexpr int kLast = static_cast<int>(ReduceOp::kProduct);
  if (reduce_op < 0 || reduce_op > kLast) {
    return InvalidArgument("there is no reduce_op " +
                           std::to_string(reduce_op) +
                           "; pass Average, Sum, Min, Max or Product");
  }
  reduce_op_ = static_cast<ReduceOp>(reduce_op);
  if (reduce_op_ == ReduceOp::kAdasum) {
    return InvalidArgument("Adasum is not supported; pass Average or Sum");
  }
  DType type;
  TF_HVD_RETURN_IF_ERROR(ToDType(dtype, &type));
  if (!IsReducible(type, reduce_op_)) {
    return InvalidArgument(std::string("cannot compute ") + NameOf(reduce_op_) +
                           " of " + NameOf(type) +
                           "; cast the tensor or take another operation");
  }
  return Status::Ok();
}

Status AllreduceKernel::FillEntry(tf::OpKernelContext* ctx, const Runtime&,
                                  const std::shared_ptr<HeldTensors>& held,
                                  Entry* entry) {
  TF_HVD_RETURN_IF_ERROR(valid_);
  entry->record.reduce_op = reduce_op_;
  entry->record.prescale = prescale_;
  entry->record.postscale = postscale_;
  entry->record.tensors.reserve(ctx->num_inputs());
  entry->tensors.reserve(ctx->num_inputs());
  for (int i = 0; i < ctx->num_inputs(); ++i) {
    TF_HVD_RETURN_IF_ERROR(
        AddTensor(ctx, i, Output::kSameShape, held.get(), entry));
  }
  return Status::Ok();
}

REGISTER_KERNEL_BUILDER(Name("HorovodAllreduce").Device(tf::DEVICE_CPU),
                        AllreduceKernel);

}  // namespace tf_hvd
