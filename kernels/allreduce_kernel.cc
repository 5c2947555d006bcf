// HorovodAllreduce and HorovodGroupedAllreduce, which differ in the number of
// their inputs alone.
#include "kernels/reduction_kernel.h"

namespace tf_hvd {
namespace {

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

}  // namespace
}  // namespace tf_hvd
