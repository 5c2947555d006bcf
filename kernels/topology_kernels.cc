// HorovodSize, HorovodRank and the other numbers of the job.
#include <memory>

#include "kernels/attributes.h"
#include "kernels/tf_adapters.h"
#include "kernels/tf_compat.h"
#include "kernels/topology.h"
#include "runtime/api/c_api.h"
#include "runtime/api/runtime.h"

namespace tf_hvd {
namespace {

// Any thread.
class TopologyKernel final : public tf::OpKernel {
 public:
  explicit TopologyKernel(tf::OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ReadOptional(ctx, "process_set_id", &set_));
  }

  void Compute(tf::OpKernelContext* ctx) override {
    std::shared_ptr<Runtime> runtime;
    OP_REQUIRES_OK(ctx, ToTensorFlow(FindDefaultRuntime(&runtime)));
    int32_t value = 0;
    OP_REQUIRES_OK(
        ctx, ToTensorFlow(ReadNumber(*runtime, type_string(), set_, &value)));
    tf::Tensor* output = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, tf::TensorShape(), &output));
    output->scalar<int32_t>()() = value;
  }

 private:
  int32_t set_ = kWorldSet;
};

#define TF_HVD_NUMBER(op) \
  REGISTER_KERNEL_BUILDER(Name(op).Device(tf::DEVICE_CPU), TopologyKernel)

TF_HVD_NUMBER("HorovodSize");
TF_HVD_NUMBER("HorovodProcessSetIncluded");
TF_HVD_NUMBER("HorovodRank");
TF_HVD_NUMBER("HorovodLocalRank");
TF_HVD_NUMBER("HorovodLocalSize");
TF_HVD_NUMBER("HorovodCrossRank");
TF_HVD_NUMBER("HorovodCrossSize");

#undef TF_HVD_NUMBER

}  // namespace
}  // namespace tf_hvd
