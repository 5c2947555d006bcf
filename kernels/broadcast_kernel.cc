// HorovodBroadcast: the root's input is its output, without a copy.
#include "kernels/rooted_kernel.h"

namespace tf_hvd {
namespace {

class BroadcastKernel final : public RootedKernel {
 public:
  explicit BroadcastKernel(tf::OpKernelConstruction* ctx) : RootedKernel(ctx) {}

 private:
  Status AddTensors(Call* call, bool is_root) const override {
    // What the others put in is not used, so that their result may take its
    // place.
    return AddTensor(call, 0, is_root ? Output::kInput : Output::kSameShape);
  }
};

REGISTER_KERNEL_BUILDER(Name("HorovodBroadcast").Device(tf::DEVICE_CPU),
                        BroadcastKernel);
REGISTER_KERNEL_BUILDER(Name("HorovodBroadcast").Device(tf::DEVICE_GPU),
                        BroadcastKernel);

}  // namespace
}  // namespace tf_hvd
