// HorovodAllgather: the result's memory is asked for when the first dimensions
// of all ranks are known.
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "kernels/collective_kernel.h"
#include "kernels/tf_adapters.h"

namespace tf_hvd {
namespace {

class AllgatherKernel : public CollectiveKernel {
 public:
  explicit AllgatherKernel(tf::OpKernelConstruction* ctx)
      : CollectiveKernel(ctx, OpKind::kAllgather) {}

 protected:
  Status FillEntry(tf::OpKernelContext* ctx, const Runtime&,
                   const std::shared_ptr<HeldTensors>& held,
                   Entry* entry) override {
    TF_HVD_RETURN_IF_ERROR(
        AddTensor(ctx, 0, Output::kLater, held.get(), entry));
    TensorSpec& spec = entry->record.tensors[0];
    if (spec.shape.empty()) {
      return InvalidArgument("the tensor is a scalar, " +
                             Describe(spec.dtype, spec.shape) +
                             ", but must have at least one dimension; reshape "
                             "it: tf.reshape(tensor, [1])");
    }
    entry->tensors[0].first_dim = spec.shape[0];
    spec.shape[0] = -1;
    // `ctx` lives until the entry is completed, `held` longer; the helm's
    // holder calls this and completes the entry afterwards.
    entry->allocate = [ctx, held](size_t, const std::vector<int64_t>& dims,
                                  void** output) {
      return Allocate(ctx, dims, held.get(), output);
    };
    return Status::Ok();
  }

 private:
  static Status Allocate(tf::OpKernelContext* ctx,
                         const std::vector<int64_t>& first_dims,
                         HeldTensors* held, void** output) {
    tf::TensorShape shape = ctx->input(0).shape();
    const int64_t rows =
        std::accumulate(first_dims.begin(), first_dims.end(), int64_t{0});
    TF_HVD_RETURN_IF_ERROR(FromTensorFlow(shape.SetDimWithStatus(0, rows)));
    tf::Tensor* result = nullptr;
    TF_HVD_RETURN_IF_ERROR(
        FromTensorFlow(ctx->allocate_output(0, shape, &result)));
    *output = result->data();
    held->push_back(*result);
    return Status::Ok();
  }
};

REGISTER_KERNEL_BUILDER(Name("HorovodAllgather").Device(tf::DEVICE_CPU),
                        AllgatherKernel);

}  // namespace
}  // namespace tf_hvd
