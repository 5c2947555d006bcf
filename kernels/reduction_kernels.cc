// HorovodAllreduce, HorovodReducescatter and their grouped forms: the
// collectives that compute something.
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "compute/buffer_ops.h"
#include "kernels/collective_kernel.h"
#include "kernels/tf_adapters.h"

namespace tf_hvd {
namespace {

// What the kernels of both share: the operation and its factors.
class ReductionKernel : public CollectiveKernel {
 protected:
  ReductionKernel(tf::OpKernelConstruction* ctx, OpKind kind);

  // Fills in the reduction, then the tensors, and casts them if they travel in
  // another type: here in the host's memory, on their way in a GPU's.
  Status FillEntry(Call* call) final;

  // Adds input `index` and its output.
  virtual Status AddReduced(Call* call, int index) const = 0;

 private:
  // `type`: of the tensors; afterwards, the one that they travel in.
  Status CastTo(const std::string& wire, DType* type);
  Status Cast(Call* call) const;

  // Whether the operation exists and is possible for the type that travels;
  // both are attributes, so the answer is that of every call.
  Status Validate(int reduce_op, DType type);

  ReduceOp reduce_op_ = ReduceOp::kSum;
  double prescale_ = 1.0;
  double postscale_ = 1.0;
  std::string compression_;
  std::optional<DType> wire_;
  Status valid_;
};

// Memory for `count` numbers of 16 bits, which the call holds.
Status NewHalves(Call* call, int64_t count, void** memory) {
  tf::Tensor halves;
  TF_HVD_RETURN_IF_ERROR(FromTensorFlow(call->ctx->allocate_temp(
      tf::DT_HALF, tf::TensorShape({count}), &halves)));
  *memory = halves.data();
  call->held->push_back(halves);
  return Status::Ok();
}

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
  std::string wire;
  OP_REQUIRES_OK(ctx, ctx->GetAttr("wire_dtype", &wire));
  prescale_ = prescale;
  postscale_ = postscale;
  if (exact.size() == 2) {
    std::memcpy(&prescale_, &exact[0], sizeof(prescale_));
    std::memcpy(&postscale_, &exact[1], sizeof(postscale_));
  }
  // Not an error of the construction: the other ranks would wait for a call
  // that never comes.
  DType type = DType::kFloat32;
  valid_ = ToDType(dtype, &type);
  if (valid_.ok() && !wire.empty()) valid_ = CastTo(wire, &type);
  if (valid_.ok()) valid_ = Validate(reduce_op, type);
  if (exact.size() != 2 && !exact.empty()) {
    valid_ = InvalidArgument("exact_factors has two numbers, or none");
  }
}

Status ReductionKernel::CastTo(const std::string& wire, DType* type) {
  for (const DType half : {DType::kFloat16, DType::kBfloat16}) {
    if (wire == NameOf(half)) wire_ = half;
  }
  if (!wire_.has_value() || *type != DType::kFloat32) {
    return InvalidArgument(std::string("cannot send ") + NameOf(*type) +
                           " as " + wire +
                           "; wire_dtype is float16 or bfloat16, of float32");
  }
  *type = *wire_;
  return Status::Ok();
}

Status ReductionKernel::Validate(int reduce_op, DType type) {
  constexpr int kLast = static_cast<int>(ReduceOp::kProduct);
  if (reduce_op < 0 || reduce_op > kLast) {
    return InvalidArgument("there is no reduce_op " +
                           std::to_string(reduce_op) +
                           "; pass Average, Sum, Adasum, Min, Max or Product");
  }
  reduce_op_ = static_cast<ReduceOp>(reduce_op);
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
  return wire_.has_value() ? Cast(call) : Status::Ok();
}

Status ReductionKernel::Cast(Call* call) const {
  Entry& entry = call->entry;
  for (TensorSpec& spec : entry.request.tensors) spec.dtype = *wire_;
  if (entry.request.device == DeviceKind::kGpu) {
    entry.stored = DType::kFloat32;
    return Status::Ok();
  }
  // What is to be cast back: from where, to where, how many.
  std::vector<Span> results;
  for (size_t i = 0; i < entry.tensors.size(); ++i) {
    Span& tensor = entry.tensors[i];
    void* narrow = nullptr;
    TF_HVD_RETURN_IF_ERROR(NewHalves(call, tensor.count, &narrow));
    StoreAccumulator(*wire_, narrow, tensor.input, tensor.count, 1.0);
    void* result = narrow;
    const int64_t count =
        call->ctx->mutable_output(static_cast<int>(i))->NumElements();
    if (kind() == OpKind::kReducescatter) {
      TF_HVD_RETURN_IF_ERROR(NewHalves(call, count, &result));
    }
    results.push_back({result, tensor.output, count});
    tensor.input = narrow;
    tensor.output = result;
  }
  call->finish = [wire = *wire_, results = std::move(results),
                  held = call->held](int32_t) {
    for (const Span& result : results) {
      LoadAccumulator(wire, result.output, result.input, result.count, 1.0);
    }
    return Status::Ok();
  };
  return Status::Ok();
}

// HorovodAllreduce and HorovodGroupedAllreduce, which differ in the number of
// their inputs alone.
class AllreduceKernel final : public ReductionKernel {
 public:
  explicit AllreduceKernel(tf::OpKernelConstruction* ctx)
      : ReductionKernel(ctx, OpKind::kAllreduce) {}

 private:
  Status AddReduced(Call* call, int index) const override {
    return AddTensor(call, index, Output::kSameShape);
  }
};

REGISTER_KERNEL_BUILDER(Name("HorovodAllreduce").Device(tf::DEVICE_CPU),
                        AllreduceKernel);
REGISTER_KERNEL_BUILDER(
    Name("HorovodGroupedAllreduce").Device(tf::DEVICE_CPU).HostMemory("stamp"),
    AllreduceKernel);
REGISTER_KERNEL_BUILDER(Name("HorovodAllreduce").Device(tf::DEVICE_GPU),
                        AllreduceKernel);
REGISTER_KERNEL_BUILDER(
    Name("HorovodGroupedAllreduce").Device(tf::DEVICE_GPU).HostMemory("stamp"),
    AllreduceKernel);

// HorovodReducescatter and HorovodGroupedReducescatter, which differ in the
// number of their inputs alone.
class ReducescatterKernel final : public ReductionKernel {
 public:
  explicit ReducescatterKernel(tf::OpKernelConstruction* ctx)
      : ReductionKernel(ctx, OpKind::kReducescatter) {}

 private:
  Status AddReduced(Call* call, int index) const override {
    TF_HVD_RETURN_IF_ERROR(AddTensor(call, index, Output::kLater));
    TF_HVD_RETURN_IF_ERROR(CheckHasRows(*call));
    // All ranks must have the same rows: how many are this rank's is known now.
    tf::TensorShape shape = call->ctx->input(index).shape();
    shape.set_dim(0, ScatteredRows(shape.dim_size(0), call->membership.ranks,
                                   call->membership.place));
    tf::Tensor* result = nullptr;
    TF_HVD_RETURN_IF_ERROR(
        FromTensorFlow(call->ctx->allocate_output(index, shape, &result)));
    call->entry.tensors.back().output = result->data();
    call->held->push_back(*result);
    return Status::Ok();
  }
};

REGISTER_KERNEL_BUILDER(Name("HorovodReducescatter").Device(tf::DEVICE_CPU),
                        ReducescatterKernel);
REGISTER_KERNEL_BUILDER(
    Name("HorovodGroupedReducescatter").Device(tf::DEVICE_CPU),
    ReducescatterKernel);
REGISTER_KERNEL_BUILDER(Name("HorovodReducescatter").Device(tf::DEVICE_GPU),
                        ReducescatterKernel);
REGISTER_KERNEL_BUILDER(
    Name("HorovodGroupedReducescatter").Device(tf::DEVICE_GPU),
    ReducescatterKernel);

}  // namespace
}  // namespace tf_hvd
