// HorovodBarrier and HorovodJoin: requests without tensors.
#include "kernels/collective_kernel.h"
#include "kernels/tf_adapters.h"
#include "runtime/request/sources.h"

namespace tf_hvd {
namespace {

class BarrierKernel final : public CollectiveKernel {
 public:
  explicit BarrierKernel(tf::OpKernelConstruction* ctx)
      : CollectiveKernel(ctx, OpKind::kBarrier) {}

 private:
  Status FillEntry(Call*) override { return Status::Ok(); }
};

class JoinKernel final : public CollectiveKernel {
 public:
  explicit JoinKernel(tf::OpKernelConstruction* ctx)
      : CollectiveKernel(ctx, OpKind::kJoin) {}

 private:
  Status FillEntry(Call* call) override {
    tf::Tensor* last_rank = nullptr;
    TF_HVD_RETURN_IF_ERROR(
        FromTensorFlow(call->ctx->allocate_output(0, {}, &last_rank)));
    // Not called without the context, which owns the output.
    call->finish = [last_rank, set = set()](int32_t value) {
      last_rank->scalar<int32_t>()() = value;
      TheSources()->AfterJoin(set);
      return Status::Ok();
    };
    return Status::Ok();
  }
};

REGISTER_KERNEL_BUILDER(Name("HorovodBarrier").Device(tf::DEVICE_CPU),
                        BarrierKernel);
REGISTER_KERNEL_BUILDER(Name("HorovodJoin").Device(tf::DEVICE_CPU), JoinKernel);

}  // namespace
}  // namespace tf_hvd
