// HorovodReducescatter and HorovodGroupedReducescatter, which differ in the
// number of their inputs alone.
#include "kernels/reduction_kernel.h"
#include "kernels/tf_adapters.h"

namespace tf_hvd {
namespace {

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
