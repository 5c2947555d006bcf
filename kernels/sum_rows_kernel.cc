// HorovodSumRows: the rows of IndexedSlices that have the same index become
// one, in their order.
#include "compute/sum_rows_cpu.h"
#include "kernels/sum_rows.h"
#include "kernels/tf_adapters.h"
#include "kernels/tf_compat.h"

namespace tf_hvd {
namespace {

Status CheckShapes(const tf::Tensor& values, const tf::Tensor& order,
                   const tf::Tensor& ends) {
  if (values.dims() < 1 || order.dims() != 1 || ends.dims() != 1 ||
      order.NumElements() != values.dim_size(0)) {
    return InvalidArgument(
        "expected values of shape [n, ...], an order of shape [n] and ends of "
        "shape [count]; got " +
        values.shape().DebugString() + ", " + order.shape().DebugString() +
        " and " + ends.shape().DebugString());
  }
  return Status::Ok();
}

// Any thread.
class SumRowsKernel final : public tf::OpKernel {
 public:
  explicit SumRowsKernel(tf::OpKernelConstruction* ctx) : OpKernel(ctx) {
    DType dtype = DType::kFloat32;
    OP_REQUIRES_OK(ctx, ToTensorFlow(ToDType(ctx->input_type(0), &dtype)));
    OP_REQUIRES_OK(ctx, ToTensorFlow(FindSumWay(dtype, &way_)));
  }

  void Compute(tf::OpKernelContext* ctx) override {
    const tf::Tensor& values = ctx->input(0);
    const tf::Tensor& order = ctx->input(1);
    const tf::Tensor& ends = ctx->input(2);
    OP_REQUIRES_OK(ctx, ToTensorFlow(CheckShapes(values, order, ends)));
    tf::TensorShape shape = values.shape();
    shape.set_dim(0, ends.NumElements());
    tf::Tensor* sums = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, shape, &sums));
    if (sums->NumElements() == 0) return;
    SumRowsArguments arguments{};
    arguments.values = values.data();
    arguments.order = static_cast<const int64_t*>(order.data());
    arguments.ends = static_cast<const int64_t*>(ends.data());
    arguments.sums = sums->data();
    arguments.rows = order.NumElements();
    arguments.sum_count = ends.NumElements();
    arguments.columns = sums->NumElements() / arguments.sum_count * way_.parts;
    OP_REQUIRES_OK(ctx, ToTensorFlow(Sum(ctx, arguments)));
  }

 private:
  Status Sum(tf::OpKernelContext* ctx, const SumRowsArguments& arguments) {
    TF_HVD_RETURN_IF_ERROR(CheckOrder(arguments));
    const int64_t additions = arguments.rows * arguments.columns;
    const auto params = AdaptiveShards(1 + additions / arguments.sum_count);
    ctx->device()->tensorflow_cpu_worker_threads()->workers->ParallelFor(
        arguments.sum_count, params,
        [&](int64_t begin, int64_t end) { way_.sum(arguments, begin, end); });
    return Status::Ok();
  }

  SumWay way_{};
};

REGISTER_KERNEL_BUILDER(Name("HorovodSumRows").Device(tf::DEVICE_CPU),
                        SumRowsKernel);

}  // namespace
}  // namespace tf_hvd
