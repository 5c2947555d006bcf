// HorovodBroadcastNumber, HorovodIdentify and HorovodCountReduction.
#include <limits>
#include <memory>
#include <string>

#include "kernels/attributes.h"
#include "kernels/tf_adapters.h"
#include "kernels/tf_compat.h"
#include "kernels/topology.h"
#include "runtime/api/c_api.h"
#include "runtime/api/runtime.h"
#include "runtime/request/sources.h"
#include "tensorflow/core/framework/resource_mgr.h"

namespace tf_hvd {
namespace {

absl::Status ReadScalar(tf::OpKernelContext* ctx, int index, int64_t* number) {
  const tf::Tensor& input = ctx->input(index);
  if (input.NumElements() != 1) {
    return absl::InvalidArgumentError("pass one number");
  }
  *number = input.flat<int64_t>()(0);
  return absl::OkStatus();
}

absl::Status GiveScalar(tf::OpKernelContext* ctx, int64_t number) {
  tf::Tensor* output = nullptr;
  TF_RETURN_IF_ERROR(ctx->allocate_output(0, tf::TensorShape(), &output));
  output->scalar<int64_t>()() = number;
  return absl::OkStatus();
}

// Any thread, like the others.
class BroadcastNumberKernel final : public tf::OpKernel {
 public:
  explicit BroadcastNumberKernel(tf::OpKernelConstruction* ctx)
      : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("root_rank", &root_));
  }

  void Compute(tf::OpKernelContext* ctx) override {
    std::shared_ptr<Runtime> runtime;
    OP_REQUIRES_OK(ctx, ToTensorFlow(FindDefaultRuntime(&runtime)));
    int32_t rank = 0;
    OP_REQUIRES_OK(ctx, ToTensorFlow(tf_hvd::ReadNumber(*runtime, "HorovodRank",
                                                        kWorldSet, &rank)));
    int64_t list = 0;
    OP_REQUIRES_OK(ctx, ReadScalar(ctx, 0, &list));
    const int64_t number = rank == root_ ? TheSources()->BroadcastNumber(list)
                                         : std::numeric_limits<int64_t>::max();
    OP_REQUIRES_OK(ctx, GiveScalar(ctx, number));
  }

 private:
  int32_t root_ = 0;
};

class IdentifyKernel final : public tf::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* ctx) override {
    int64_t list = 0;
    int64_t number = 0;
    OP_REQUIRES_OK(ctx, ReadScalar(ctx, 0, &list));
    OP_REQUIRES_OK(ctx, ReadScalar(ctx, 1, &number));
    TheSources()->Identify(list, number);
  }
};

class CountReductionKernel final : public tf::OpKernel {
 public:
  explicit CountReductionKernel(tf::OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("process_set_id", &set_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("source_list", &list_));
  }

  void Compute(tf::OpKernelContext* ctx) override {
    std::string name;
    if (ctx->num_inputs() > 0) {
      const tf::ResourceHandle& handle = tf::HandleFromInput(ctx, 0);
      name = handle.container() + "/" + handle.name();
    }
    OP_REQUIRES_OK(
        ctx, GiveScalar(ctx, TheSources()->CountReduction(list_, name, set_)));
  }

 private:
  int32_t set_ = kWorldSet;
  int64_t list_ = 0;
};

REGISTER_KERNEL_BUILDER(Name("HorovodBroadcastNumber").Device(tf::DEVICE_CPU),
                        BroadcastNumberKernel);
REGISTER_KERNEL_BUILDER(Name("HorovodIdentify").Device(tf::DEVICE_CPU),
                        IdentifyKernel);
REGISTER_KERNEL_BUILDER(Name("HorovodCountReduction").Device(tf::DEVICE_CPU),
                        CountReductionKernel);
// The address of the variable.
REGISTER_KERNEL_BUILDER(Name("HorovodCountReduction")
                            .Device(tf::DEVICE_GPU)
                            .HostMemory("variables")
                            .HostMemory("count"),
                        CountReductionKernel);

}  // namespace
}  // namespace tf_hvd
