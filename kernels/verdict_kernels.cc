// HorovodFingerprints and HorovodVerdict.
#include <memory>

#include "kernels/attributes.h"
#include "kernels/tf_adapters.h"
#include "kernels/tf_compat.h"
#include "kernels/verdict.h"
#include "runtime/api/c_api.h"
#include "runtime/api/runtime.h"

namespace tf_hvd {
namespace {

// Any thread.
class FingerprintsKernel final : public tf::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* ctx) override {
    tf::Tensor* output = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(
                            0, tf::TensorShape({ctx->num_inputs()}), &output));
    auto fingerprints = output->vec<int64_t>();
    fingerprints.setZero();
    OP_REQUIRES(ctx, ctx->input(0).NumElements() == 1,
                absl::InvalidArgumentError("wanted must be a scalar"));
    if (!ctx->input(0).flat<bool>()(0)) return;
    for (int i = 1; i < ctx->num_inputs(); ++i) {
      const tf::Tensor& value = ctx->input(i);
      OP_REQUIRES(
          ctx, tf::DataTypeCanUseMemcpy(value.dtype()),
          absl::InvalidArgumentError(
              "strings have no fingerprints; pass tensors of another type"));
      fingerprints(i - 1) = FingerprintOf(value.data(), value.TotalBytes());
    }
  }
};

// Any thread.
class VerdictKernel final : public tf::OpKernel {
 public:
  explicit VerdictKernel(tf::OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ReadVerdict(ctx, &verdict_));
  }

  void Compute(tf::OpKernelContext* ctx) override {
    std::shared_ptr<Runtime> runtime;
    OP_REQUIRES_OK(ctx, ToTensorFlow(FindDefaultRuntime(&runtime)));
    const auto wrong = ctx->input(0).flat<bool>();
    tf::Tensor* output = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, tf::TensorShape(), &output));
    OP_REQUIRES_OK(ctx, ToTensorFlow(Tell(*runtime, verdict_, wrong.data(),
                                          static_cast<size_t>(wrong.size()),
                                          &output->scalar<bool>()())));
  }

 private:
  Verdict verdict_;
};

REGISTER_KERNEL_BUILDER(Name("HorovodFingerprints").Device(tf::DEVICE_CPU),
                        FingerprintsKernel);
REGISTER_KERNEL_BUILDER(Name("HorovodVerdict").Device(tf::DEVICE_CPU),
                        VerdictKernel);

}  // namespace
}  // namespace tf_hvd
